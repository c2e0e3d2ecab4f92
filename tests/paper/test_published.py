"""The published numbers against the paper's TeX, where it is at hand, and against their own schema everywhere."""

import json
import os
import re
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import pytest

from kip.paper import published

# --- a small reader of the paper's TeX, which shares nothing with the module ----------------------------------------

MACROS = {
    r"\algnamerho": "KIP_ρ",
    r"\algname": "KIP",
    r"\KIP": "KIP",
    r"\LS": "LS",
    r"\tilde{D}": "D̃",
    r"\gamma": "γ",
    r"\lambda": "λ",
    r"\rho": "ρ",
    r"\sigma": "σ",
    r"\times": "×",
    r"\setminus": "\\",
    r"\pm": "±",
    r"\%": "%",
    r"\#": "#",
    r"\,": "",
    "``": '"',
    "~": " ",
    "$": "",
}


class Number(NamedTuple):
    """One printed entry: its text, its two numbers, and how it is set."""

    text: str
    mean: float | None
    deviation: float | None
    emphasis: str | None
    star: bool


class Entry(NamedTuple):
    """One cell of a TeX table: where it stands and what is printed."""

    heads: tuple[str, ...]
    column: str
    group: int
    number: Number


def paper_tex() -> str:
    """The TeX source, or a skip that says where it was looked for."""
    beside = Path(__file__).parents[2].parent / "shared" / "paper" / "kip.tex"
    path = Path(os.environ.get("KIP_PAPER_TEX", beside))
    if not path.is_file():
        pytest.skip("the paper's TeX is not at hand: neither ../shared/paper/kip.tex nor KIP_PAPER_TEX")
    return re.sub(r"(?<!\\)%.*", "", path.read_text(encoding="utf-8"))


def without(tex: str, command: str) -> tuple[str, list[str]]:
    """`tex` with every `\\command{...}` taken out, and the arguments taken."""
    taken, opening = [], f"\\{command}{{"
    while (start := tex.find(opening)) >= 0:
        end, depth = start + len(opening), 1
        while depth:
            depth += {"{": 1, "}": -1}.get(tex[end], 0)
            end += 1
        taken.append(tex[start + len(opening) : end - 1])
        tex = tex[:start] + tex[end:]
    return tex, taken


def plain(tex: str) -> str:
    """TeX as a reader sees it: macros expanded, marks and citations gone, spaces single."""
    tex = re.sub(r"~?\\(?:tnote|cite[pt]?|label)\s*\{[^{}]*\}", "", tex)
    for macro, text in MACROS.items():
        tex = re.sub(re.escape(macro) + (r"(?![A-Za-z])" if macro[-1].isalpha() else ""), lambda _, t=text: t, tex)
    tex = re.sub(r"\\(?:textbf|textit|emph|mathrm)\{([^{}]*)\}", r"\1", tex)
    tex = re.sub(r"\\[a-z]+space\*?\{[^{}]*\}", "", tex)
    tex = re.sub(r"\(KIP_ρ\s+\)", "(KIP_ρ)", tex)
    return re.sub(r"\s+", " ", tex).strip()


def environments(tex: str, name: str) -> dict[str, tuple[str, str]]:
    """Label -> (printed number, source) of every numbered environment; the appendix counts anew, with an A."""
    appendix = tex.index("\\appendix")
    found, count = {}, {"": 0, "A": 0}
    for match in re.finditer(rf"\\begin\{{{name}\}}.*?\\end\{{{name}\}}", tex, re.DOTALL):
        part = "A" if match.start() > appendix else ""
        count[part] += 1
        label = re.search(r"\\label\{([^{}]*)\}", match.group())
        assert label, f"a {name} without a label"
        found[label.group(1)] = (f"{part}{count[part]}", match.group())
    return found


def title_of(source: str) -> str:
    """The caption's bold opening (figure 1 has letters there, which are no title)."""
    caption = source[source.index("\\caption") :]
    match = re.search(r"\\textbf\{([^()][^{}]*)\}", caption)
    return plain(match.group(1)).rstrip(".") if match else ""


def number_of(entry: str) -> Number:
    """A printed entry: `\\textbf{97.6$\\pm$0.0}*`, `15.33 $\\pm$ 2.43`, `98.6`, or `-`."""
    emphasis = "bold" if "\\textbf" in entry else "italic" if "\\textit" in entry else None
    text = plain(entry).replace(" ", "")
    star = text.endswith("*")
    text = text.removesuffix("*")
    if text == "-":
        return Number("-", None, None, emphasis, star)
    mean, _, deviation = text.partition("±")
    return Number(text, float(mean), float(deviation) if deviation else None, emphasis, star)


def rows_of(source: str) -> list[tuple[int, list[str]]]:
    """(group, entries) of each row of the tabular; a \\midrule starts a group. The heading is group 0."""
    body = source[source.index("\\toprule") + len("\\toprule") : source.index("\\bottomrule")]
    body = re.sub(r"\\cmidrule\(r\)\{[^{}]*\}", "", body)
    rows, group = [], 0
    for line in re.split(r"\\\\", body):
        group += line.count("\\midrule")
        entries = [entry.strip() for entry in re.split(r"(?<!\\)&", line.replace("\\midrule", ""))]
        if any(entries):
            rows.append((group, entries))
    return rows


def entries_of(source: str) -> list[Entry]:
    """Every cell of a table in printed order."""
    (_, heading), *rows = rows_of(source)
    n_heads = sum(entry.startswith("\\textbf") and "Accuracy" not in entry for entry in heading)
    found = []
    for group, row in rows:
        assert not any(row[len(heading) :]), f"more entries than columns: {row}"
        heads = tuple(plain(entry) for entry in row[:n_heads])
        for column, entry in zip(heading[n_heads:], row[n_heads : len(heading)], strict=True):
            found.append(Entry(heads, plain(column), group, number_of(entry)))
    return found


def resolved(tex: str) -> str:
    """The running text, references printed as numbers, with each footnote set as a paragraph of its own."""
    numbers = {label: n for name in ("table", "figure") for label, (n, _) in environments(tex, name).items()}
    tex = re.sub(r"\\ref\{([^{}]*)\}", lambda m: numbers.get(m.group(1), "?"), tex)
    tex, footnotes = without(tex, "footnote")
    return "\n".join(plain(part) for part in (tex, *footnotes))


# --- what the headings mean, read from the printed words alone ------------------------------------------------------

SWEEP = re.compile(r"(Natural|KIP)(?: \((a|a\+l)\))? (\d+)")


def meaning_of(table: published.Table, entry: Entry) -> dict[str, object]:
    """Algorithm, architecture, kernel type, method, variant, support and rho that an entry's headings say."""
    if table.heads == ("Dataset",):
        method, variant, support = SWEEP.fullmatch(entry.heads[0]).groups()
        rho = int(entry.column.removesuffix("% crpt")) / 100
        return meaning("NN", "FC1", method, variant, int(support), rho)
    if table.heads == ("Method",):
        architecture, method = entry.heads[0].split(", ")
        support, crpt = entry.column.split()
        return meaning("NN", architecture, method, None, int(support), {"crpt": 0.9, "uncrpt": 0.0}[crpt])
    if table.heads == ("Kernel", "Method"):
        architecture = entry.heads[0].removesuffix(" Kernel")
        method, variant, _ = re.fullmatch(r"(\w+)(?: \((a\+l)\), (10[kK]) images)?", entry.heads[1]).groups()
        whole = {"mnist": 60_000, "cifar10": 50_000}[table.dataset]
        support = {"KIP": 10_000, "Base": whole, "Ensembling": 45_000}[method]
        algorithm = {"LeNet-5": "NN", "CKN": None}.get(architecture, "KRR")
        return meaning(algorithm, architecture, method, variant, support, 0.0)
    if table.heads == ("Alg.", "Arch., Method"):
        architecture, method = entry.heads[1].split(", ")
        method, variant = re.fullmatch(r"(\w+)(?: \((a \+ l)\))?", method.removesuffix(" + ZCA")).groups()
        return meaning(entry.heads[0], architecture, method, variant, int(entry.column), 0.0)
    return meaning("KRR", entry.column, "Natural", None, int(entry.heads[0]), 0.0)


def meaning(
    algorithm: str | None, architecture: str, method: str, variant: str | None, support: int, rho: float
) -> dict[str, object]:
    """The fields of a cell, with the paper's default: "a neural kernel refers to NTK unless otherwise stated"."""
    architecture, _, nngp = architecture.partition(" ")
    neural = algorithm == "KRR" and architecture in {"FC1", "Myrtle-5", "Myrtle-10"}
    return {
        "algorithm": algorithm,
        "architecture": architecture,
        "kernel_type": (nngp or "NTK") if neural else None,
        "method": method,
        "variant": "a + l" if variant == "a+l" else variant,
        "support": support,
        "rho": rho,
    }


def test_the_tables_are_the_papers_in_order_with_its_numbers_and_titles():
    printed = environments(paper_tex(), "table")
    assert [table.label for table in published.tables()] == list(printed)
    for table in published.tables():
        number, source = printed[table.label]
        assert (table.number, table.title) == (number, title_of(source))
        assert table.heads == tuple(plain(entry) for entry in rows_of(source)[0][1][: len(table.heads)])


@pytest.mark.parametrize("table", published.tables(), ids=lambda table: table.id)
def test_every_cell_is_the_papers(table):
    """Nothing missing, nothing extra, each number as printed where it is printed."""
    printed = entries_of(environments(paper_tex(), "table")[table.label][1])
    stored = published.cells(table.id)
    assert len(stored) == len(printed)
    rows = {row.id: row for row in table.rows}
    columns = {column.id: column for column in table.columns}
    for cell, entry in zip(stored, printed, strict=True):
        row = rows[cell.row]
        place = (row.title, columns[cell.column].title, row.group)
        assert place == (entry.heads, entry.column, entry.group), cell.id
        assert Number(cell.text, cell.mean, cell.deviation, cell.emphasis, cell.star) == entry.number, cell.id


@pytest.mark.parametrize("table", published.tables(), ids=lambda table: table.id)
def test_every_cell_says_what_its_headings_say(table):
    printed = entries_of(environments(paper_tex(), "table")[table.label][1])
    for cell, entry in zip(published.cells(table.id), printed, strict=True):
        said = meaning_of(table, entry)
        assert {field: getattr(cell, field) for field in said} == said, cell.id
        zca = any("ZCA" in head for head in entry.heads)
        assert cell.preprocess == (None if cell.prior_art else "zca" if zca else "standard"), cell.id
        assert table.dataset == ("mnist" if "mnist" in table.label.lower() else "cifar10")


def test_prior_art_carries_the_papers_citations():
    tex = paper_tex()
    methods = dict(re.findall(r"\b(DC|LD|SLDD|DD)~\\citep\{(\w+)\}", tex))
    assert len(methods) == 4
    for name in ("mnist-baselines", "cifar10-baselines"):
        for cell in published.cells(name):
            assert cell.sources == ((methods[cell.method],) if cell.method in methods else ()), cell.id
    for name in ("mnist-classification", "cifar10-classification"):
        _, *rows = rows_of(environments(tex, "table")[published.table(name).label][1])
        for cell, (_, row) in zip(published.cells(name), rows, strict=True):
            ours = cell.architecture in {"RBF", "FC1"}
            cited = [] if ours else re.findall(r"\\citep\{(\w+)\}", " ".join(row))
            taken = [] if ours or name.startswith("cifar10") else ["shankar2020neural"]
            assert cell.sources == tuple(dict.fromkeys(cited + taken)), cell.id
    notes = environments(tex, "table")["table:subsample_cifar10"][1]
    for mark, column in (("dag", "cntk"), ("ddag", "myrtle10-g")):
        (cited,) = re.findall(rf"\\item\[\\{mark}\].*?\\citep\{{(\w+)\}}", notes)
        for cell in published.cells("cifar10-subsets"):
            if cell.column == column:
                assert cited in cell.sources
                assert cell.sources[-1] == "shankar2020neural"


def test_the_figures_are_the_papers_in_order():
    printed = environments(paper_tex(), "figure")
    assert [figure.label for figure in published.figures()] == list(printed)
    for figure in published.figures():
        number, source = printed[figure.label]
        assert figure.number == number
        assert title_of(source) in (figure.title, "")


def test_every_quotation_is_the_papers_own():
    text = resolved(paper_tex())
    quoted = [(entry.id, quote) for entry in (*published.figures(), *published.claims()) for quote in entry.quotes]
    quoted += [(table.id, quote) for table in published.tables() for quote in table.settings]
    assert [(name, quote) for name, quote in quoted if quote not in text] == []


# --- without the paper at hand --------------------------------------------------------------------------------------

SIZES = {
    "mnist-baselines": 65,
    "cifar10-baselines": 65,
    "mnist-subsets": 33,
    "cifar10-subsets": 55,
    "mnist-classification": 8,
    "cifar10-classification": 5,
    "mnist-transfer": 24,
    "cifar10-transfer": 12,
    "mnist-sweep-mse": 36,
    "mnist-sweep-xent": 24,
    "cifar10-sweep-mse": 36,
    "cifar10-sweep-xent": 24,
}

CLAIMS = [
    "image-init",
    "subsets-do-worse",
    "hundred-steps",
    "target-batches",
    "learned-gamma",
    "nngp-like-ntk",
    "learned-labels-harm-networks",
    "all-kernels-transfer",
]

BY_HAND = {
    "mnist-baselines/rbf-kip-10": (89.60, 0.09),
    "mnist-baselines/rbf-kip-al-10": (90.63, 0.27),
    "mnist-baselines/rbf-kip-al-100": (97.84, 0.06),
    "mnist-baselines/nn-fc1-kip-10000": (None, None),
    "mnist-baselines/convnet-dc-100": (97.4, 0.2),
    "mnist-baselines/myrtle5-nngp-ls-10": (70.24, 1.59),
    "cifar10-baselines/rbf-kip-5000": (None, None),
    "cifar10-baselines/myrtle10-nngp-ls-zca-10000": (82.3, 0.1),
    "mnist-subsets/linear-640": (41.9, 1.4),
    "cifar10-subsets/cntk-10": (15.33, 2.43),
    "mnist-classification/fc1-base": (98.6, None),
    "cifar10-classification/fc1-base": (57.6, None),
    "cifar10-classification/rbf-base": (52.7, None),
    "mnist-transfer/lenet-natural-200-rho90": (62.00, 0.94),
    "cifar10-transfer/wideresnet-kip-100-rho0": (33.29, 1.14),
    "cifar10-sweep-xent/kip-a-10000-rho90": (49.9, 0.2),
}


@pytest.fixture
def document():
    text = resources.files("kip.paper").joinpath("published.json").read_text(encoding="utf-8")
    return json.loads(text)


def test_tables_and_counts():
    assert {table.id: len(published.cells(table.id)) for table in published.tables()} == SIZES
    assert len(published.cells()) == sum(SIZES.values()) == 387
    ours = [cell for cell in published.cells() if cell.table.endswith("-subsets") and not cell.prior_art]
    assert len(ours) == 66


@pytest.mark.parametrize(("name", "numbers"), BY_HAND.items())
def test_well_known_values(name, numbers):
    cell = published.cell(name)
    assert (cell.mean, cell.deviation) == numbers
    assert cell.given == (numbers[0] is not None)


def test_a_cell_by_id_by_short_name_and_by_place_is_one_cell():
    for cell in published.cells():
        assert published.cell(cell.id) is cell
        assert published.cell(cell.name, cell.table) is cell
        assert published.cell_at(cell.table, cell.row, cell.column) is cell
        assert re.fullmatch(r"[a-z0-9-]+/[a-z0-9-]+", cell.id), "an id is typed on a command line"


def test_the_losses_of_the_networks():
    losses = {}
    for cell in published.cells():
        if cell.algorithm == "NN" and not cell.prior_art:
            losses.setdefault(cell.table, set()).add(cell.loss)
    sweeps = {f"{data}-sweep-{loss}": {loss} for data in ("mnist", "cifar10") for loss in ("mse", "xent")}
    tuned = {f"cifar10-{table}": {"tuned"} for table in ("baselines", "transfer")}
    assert losses == sweeps | tuned | {f"mnist-{table}": {"xent"} for table in ("baselines", "transfer")}


def test_the_stars_mark_the_most_corrupt_set_that_beats_clean_natural_images():
    """An oracle of the sweeps' own: where a star stands follows from the numbers, but for one slip of the paper's."""
    misplaced = []
    for table in (table for table in published.tables() if "-sweep-" in table.id):
        for row in (row for row in table.rows if row.id.startswith("kip-")):
            line = [cell for cell in published.cells(table.id) if cell.row == row.id]
            natural = published.cell(f"natural-{line[0].support}-rho0", table.id)
            better = [cell for cell in line if cell.mean > natural.mean]
            if [cell for cell in line if cell.star] != better[-1:]:
                misplaced.append(f"{table.id}/{row.id}")
    assert misplaced == ["cifar10-sweep-mse/kip-al-10000"]
    assert "star" in published.cell("cifar10-sweep-mse/kip-al-10000-rho90").note


def test_italics_are_second_to_bold_in_the_transfer_tables():
    for name in ("mnist-transfer", "cifar10-transfer"):
        group = {row.id: row.group for row in published.table(name).rows}
        fours: dict[tuple[int, int], list[published.Cell]] = {}
        for cell in published.cells(name):
            fours.setdefault((group[cell.row], cell.support), []).append(cell)
        for four in fours.values():
            ranked = sorted(four, key=lambda cell: cell.mean, reverse=True)
            assert [cell.emphasis for cell in ranked] == ["bold", "italic", None, None]


def test_a_lookup_that_fails_offers_the_nearest():
    with pytest.raises(ValueError, match=r"`table` must be .*'mnist-baseline'.*mnist-baselines"):
        published.cells("mnist-baseline")
    with pytest.raises(ValueError, match=r"`cell` must be .*Try .*mnist-baselines/rbf-kip-100"):
        published.cell("rbf-kip-101", "mnist-baselines")
    with pytest.raises(ValueError, match="`row` must be"):
        published.cell_at("mnist-subsets", "30", "rbf")
    with pytest.raises(ValueError, match="`column` must be"):
        published.cell_at("mnist-subsets", "10", "fc2")


def test_figures_and_claims_by_name():
    assert [claim.id for claim in published.claims()] == CLAIMS
    assert published.claim("image-init").quotes == ("We found image initialization to perform better.",)
    assert [figure.number for figure in published.figures()] == ["1", "2", "3", "A1", "A2", "A3", "A4", "A5"]
    assert len(published.figure("kip-against-natural").tables) == 4
    used = {source for cell in published.cells() for source in cell.sources}
    assert used == set(published.sources())


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"mean": 97.13}, "not those of"),
        ({"text": "about 97", "mean": 97.0}, "neither a number nor a dash"),
        ({"text": "973.1±0.1", "mean": 973.1, "deviation": 0.1}, "no percentage"),
        ({"support": "100"}, "images"),
        ({"rho": 1.0}, "`rho` must be"),
        ({"method": "Kip"}, "`method` must be one of"),
        ({"sources": ["nobody2020"]}, "not listed"),
        ({"algorithm": None}, "is missing"),
        ({"loss": "mse"}, "only a network"),
        ({"dataset": "cifar10"}, "the table's data set"),
        ({"id": "mnist-baselines/rbf-kip-1000"}, "not that of its place"),
        ({"id": "mnist-baselines/rbf-kip-10"}, "share an id"),
        ({"table": "mnist-subsets"}, "do not fill the grid"),
        ({"column": "10"}, "do not fill the grid"),
        ({"accuracy": 97.31}, "wrong fields"),
    ],
)
def test_a_file_that_is_wrong_is_refused(document, change, complaint):
    (cell,) = (cell for cell in document["cells"] if cell["id"] == "mnist-baselines/rbf-kip-100")
    cell.update(change)
    with pytest.raises(ValueError, match=complaint):
        published.read(json.dumps(document))


def test_a_missing_cell_an_extra_part_and_an_unknown_table_are_refused(document):
    last = document["cells"].pop()
    with pytest.raises(ValueError, match="do not fill the grid"):
        published.read(json.dumps(document))
    with pytest.raises(ValueError, match="the file must hold"):
        published.read(json.dumps({**document, "pictures": []}))
    document["cells"] += [last, {**last, "table": "elsewhere", "id": "elsewhere/cell"}]
    with pytest.raises(ValueError, match="no table 'elsewhere'"):
        published.read(json.dumps(document))


def test_the_file_holds_one_line_a_cell():
    text = resources.files("kip.paper").joinpath("published.json").read_text(encoding="utf-8")
    lines = text[text.index('"cells": [') :].splitlines()[1:-2]
    assert [json.loads(line.rstrip(",")) for line in lines] == json.loads(text)["cells"]
