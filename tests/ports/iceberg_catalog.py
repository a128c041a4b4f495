"""A catalog of Iceberg tables on disk: SQLite knows the tables, their files lie beside it."""

from pyiceberg.catalog import load_catalog

TABLE = "shop.orders"


class Warehouse:
    """A catalog in a folder, and its tables as others see them."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        self.properties = {
            "type": "sql",
            "uri": f"sqlite:///{folder}/catalog.db",
            "warehouse": f"file://{folder}",
        }

    @property
    def catalog(self):
        """A connection of its own, which sees what is there now."""
        return load_catalog("default", **self.properties)

    def options(self, flag):
        """The options of a job, such as --target-option."""
        return [part for pair in self.properties.items() for part in (flag, "=".join(pair))]

    def table(self, name=TABLE):
        return self.catalog.load_table(name)

    def create(self, schema, name=TABLE):
        catalog = self.catalog
        catalog.create_namespace_if_not_exists(name.split(".")[0])
        return catalog.create_table(name, schema=schema)

    def rows(self, name=TABLE):
        return self.table(name).scan().to_arrow().to_pylist()
