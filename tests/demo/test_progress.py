"""The lines of figures that the demo prints while it runs."""

from jobs.flights.progress import Progress


def test_figures_are_shown_from_the_first_message_on(broker, capsys):
    broker.create("T", "Priority", 1)
    queue = broker.queue("T")
    progress = Progress([queue])
    progress.print_line(1)
    assert capsys.readouterr().out == ""
    queue.send(["a", "b"], priority=20)
    progress.print_line(2)
    progress.print_line(3)
    columns, *shown = capsys.readouterr().out.splitlines()[1:]
    assert columns.split() == ["time", "|", "sent", "waiting", "delivered"]
    assert [line.split() for line in shown] == [
        ["2", "s", "|", "2", "2", "0"],
        ["3", "s", "|", "2", "2", "0"],
    ]
