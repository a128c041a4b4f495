"""The scripts' headers say what the code does, as far as a machine can tell."""

import re

import pytest

from rmq_spark import errors
from rmq_spark.protocol import scripts
from rmq_spark.redis import failures

FOLDER = scripts._lua_folder()
NAMES = scripts.script_names(FOLDER)
SCRIPTS = {name: FOLDER.joinpath(f"{name}.lua").read_text() for name in NAMES}


def header(text):
    """The opening comment, its lines joined."""
    return " ".join(re.match(r"(?:--.*\n)+", text).group().replace("--", "").split())


READING = ("any_due", "counts", "due", "figures", "find", "page", "stirred", "waiting")


def section(text, name):
    """What a header says behind one of its words."""
    found = re.search(
        rf"{name}:? (.*?)(?= KEYS:| ARGV:| Returns | Errors:| Bound:| Effect:|$)", header(text)
    )
    return found.group(1) if found else None


def numbers(described):
    """The numbers of a list such as '1 run, 2 seq, 3.. contents', and whether it is open."""
    found = re.findall(r"(?:^|, |,? and |pairs of |each (?:group|slot) )(\d+)(\.\.)? ", described)
    return [int(number) for number, _ in found], any(dots for _, dots in found)


def highest_index(name, table):
    code = scripts.assemble(FOLDER, name)
    found = [int(n) for n in re.findall(rf"(?i){table}\[(\d+)\]", code)]
    # KEYS[k + 2], where k runs over groups from their first key on.
    groups_from = re.search(r"GROUPS_FROM(?:, \w+)* = (\d+)", code)
    first = int(groups_from.group(1)) if groups_from else 1
    found += [first + int(n) for n in re.findall(rf"(?i){table}\[[a-z] \+ (\d+)\]", code)]
    # The keys of claims, which the caller names from this one on.
    found += [int(n) for n in re.findall(r"_KEYS(?:, \w+)* = (\d+)", code) if table == "KEYS"]
    return max(found, default=0)


def test_every_script_of_the_folder_is_known():
    assert sorted(f.stem for f in FOLDER.glob("*.lua")) == NAMES == list(scripts.scripts_for(True))


def test_every_include_of_the_folder_is_used_and_there():
    there = {f.stem: f.read_text() for f in (FOLDER / "include").glob("*.lua")}
    used = {
        name
        for text in (*SCRIPTS.values(), *there.values())
        for name in re.findall(r"^--- include (\w+)$", text, re.M)
    }
    assert there.keys() == used


def test_every_script_has_a_test_file_of_its_own(request):
    here = {file.name for file in request.path.parent.glob("test_*.py")}
    assert {f"test_{name}.py" for name in NAMES} <= here


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("table", ["KEYS", "ARGV"])
def test_the_header_names_all_keys_and_arguments_used(name, table):
    described = section(SCRIPTS[name], table)
    assert described, f"no {table} line"
    named, is_open = numbers(described)
    assert named == list(range(1, len(named) + 1)), described
    used = highest_index(name, table)
    if is_open:
        assert used in (len(named) - 1, len(named))
    else:
        assert used == len(named)


@pytest.mark.parametrize("name", NAMES)
def test_the_header_says_what_is_returned_what_fails_and_what_bounds_it(name):
    for word in ("Returns", "Errors", "Bound", "Effect"):
        assert section(SCRIPTS[name], word), f"no {word} line"


@pytest.mark.parametrize("name", NAMES)
def test_the_header_names_the_errors_of_the_code_and_no_others(name):
    code = re.sub(r"^--.*$", "", scripts.assemble(FOLDER, name), flags=re.M)
    raised = set(re.findall(r"RMQ_[A-Z]+", code))
    assert set(re.findall(r"RMQ_[A-Z]+", section(SCRIPTS[name], "Errors"))) == raised


def test_the_readme_lists_the_errors_of_all_scripts_and_the_classes_they_become():
    readme = FOLDER.joinpath("README.md").read_text()
    listed = re.findall(r"^\| `(RMQ_\w+)` \|.*\| `(\w+)` \|$", readme, re.M)
    raised = {
        code
        for name in NAMES
        for code in re.findall(r"RMQ_[A-Z]+", section(SCRIPTS[name], "Errors"))
    }
    known = {code: error for code, (error, _) in failures._OF_SCRIPTS.items()}
    of_code = {code: known.get(code, errors.ScriptFailed).__name__ for code in raised}
    assert dict(listed) == of_code
    assert len(listed) == len(raised)
    assert known.keys() <= raised


@pytest.mark.parametrize("name", NAMES)
def test_types_are_checked_before_the_first_write(name):
    code = SCRIPTS[name]
    checks = re.search(r"wrong_(slot_|group_)?type\(|set_deadlines\(", code)
    assert checks
    assert "redis.call" not in code[: checks.start()]


@pytest.mark.parametrize("name", NAMES)
def test_a_script_and_its_digest_depend_on_the_flags_the_server_knows(name):
    plain = scripts.load_scripts(FOLDER, knows_flags=False)[name]
    flagged = scripts.load_scripts(FOLDER, knows_flags=True)[name]
    assert not plain.text.startswith("#!")
    first = flagged.text.split("\n", 1)[0]
    expected = dict.fromkeys(("occur", "send_first", "send_last", "send_at", "stage"), "#!lua")
    expected |= dict.fromkeys(
        ("any_due", "counts", "due", "figures", "find", "page", "stirred", "waiting"),
        "#!lua flags=no-writes",
    )
    assert first == expected.get(name, "#!lua flags=allow-oom")
    assert flagged.text.split("\n", 1)[1] == plain.text
    assert plain.sha != flagged.sha
    assert "--- include" not in plain.text


def test_what_replicas_must_confirm_is_all_but_what_reads_or_comes_again_by_itself():
    passing = {*READING, "alter", "announce", "drop", "grant", "plan", "release", "renew"}
    loaded = scripts.scripts_for(True)
    assert {name for name, script in loaded.items() if not script.needs_replicas} == passing


@pytest.mark.parametrize("effect", ["", "-- Effect: sings\n"])
def test_a_script_without_a_known_effect_is_not_loaded(tmp_path, effect):
    (tmp_path / "new.lua").write_text(f"-- Does something new.\n{effect}return 1\n")
    with pytest.raises(ValueError, match=r"new\.lua|sings"):
        scripts.load_scripts(tmp_path, knows_flags=True)
