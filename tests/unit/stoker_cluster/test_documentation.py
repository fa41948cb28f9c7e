"""The page on Kubernetes names every setting of a plan, and every keyword of Azure's."""

import re
from pathlib import Path

from stoker.settings.readers import settings_of
from stoker_azure.config.deployment import fields_of
from stoker_cluster.plan import ClusterPlan
from stoker_cluster.router_settings import RouterSettings

PAGE = (Path(__file__).parents[3] / "server" / "docs" / "kubernetes.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    table = PAGE.partition(heading + "\n")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()[1:]]


def test_the_table_of_settings_is_complete() -> None:
    """Each setting stands in the order of the plan, with its default where it is a plain value."""
    table = rows("| setting | default | meaning |")
    fields = settings_of(ClusterPlan)
    assert [key.strip("`") for key, _, _ in table] == list(fields)
    for key, default, _ in table:
        name = key.strip("`")
        if fields[name].default not in (None, "", (), 0):
            assert default.lower() == str(fields[name].default).lower()


def test_the_table_of_azures_keywords_is_complete() -> None:
    """Each keyword stands in one row."""
    named = [name for cells in rows("| keyword | object |") for name in re.findall(r"`(\w+)`", cells[0])]
    assert sorted(named) == sorted(field.keyword for field in fields_of("aks"))


def test_the_table_of_the_routers_settings_is_complete() -> None:
    """Each setting of `stoker router` stands in its page, in their order."""
    page = (Path(__file__).parents[3] / "server" / "docs" / "router.md").read_text(encoding="utf-8")
    table = page.partition("| setting | default | meaning |\n")[2].partition("\n\n")[0]
    named = [re.findall(r"`(\w+)`", row.split("|")[1]) for row in table.splitlines()[1:]]
    assert [name for names in named for name in names] == list(settings_of(RouterSettings))
