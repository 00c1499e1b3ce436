"""`uec audit` and `uec words`: one page that a person can read, and errors that say what to do."""

from __future__ import annotations

import configparser
import json
import re
import subprocess
import sys
from pathlib import Path

import browsing
import numpy as np
import pytest
from click.testing import CliRunner

from uec import audits
from uec.auditing import folder as folders
from uec.auditing import running
from uec.auditing.report import sections, write
from uec.auditing.verdict import findings
from uec.cli import main


def run(*arguments: object):
    return CliRunner().invoke(main, [str(a) for a in arguments])


def write_lines(path, objects):
    path.write_text("\n".join(map(json.dumps, objects)))
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory, texts):
    """A corpus of 150 texts in two languages, pairs, and embeddings of both made elsewhere."""
    folder = tmp_path_factory.mktemp("audit")
    documents = [
        {"_id": f"d{i}", "text": text, "language": "de" if i % 3 else "en"}
        for i, text in enumerate(texts)
    ]
    pairs = [{"query": " ".join(text.split()[:6]), "passage": text} for text in texts]
    write_lines(folder / "corpus.jsonl", documents)
    write_lines(folder / "pairs.jsonl", pairs)
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(150, 24)).astype(np.float32)
    noise = 0.3 * rng.normal(size=(150, 24)).astype(np.float32)
    np.savez(folder / "closed.npz", corpus=shared, queries=shared + noise, passages=shared)
    return folder


def command(files, out, *extra):
    return run(
        "audit", "--members", "a=hashing:64", "--members", "b=hashing:48:1",
        "--member", f"closed={files / 'closed.npz'}",
        "--corpus", files / "corpus.jsonl", "--pairs", files / "pairs.jsonl",
        "--label", "language", "--out", out, "--seed", 1, *extra,
    )  # fmt: skip


@pytest.fixture(scope="module")
def audited(files):
    """All audits of two encoders and a file; FLARE with one seed instead of three, for time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "FLARE_SEEDS", 1)
        done = command(files, files / "out")
    assert done.exit_code == 0, done.output
    return files / "out", done.output


def test_the_report_holds_every_audit_and_the_screen_says_what_it_found(audited):
    folder, output = audited
    content = json.loads((folder / "report.json").read_text())
    assert set(content["audits"]) == set(running.NAMES) and content["refused"] == {}
    assert [member["name"] for member in content["members"]] == ["a", "b", "closed"]
    assert content["corpus"]["n_texts"] == content["corpus"]["n_pairs"] == 150
    assert content["corpus"]["labels"] == ["de", "en"]
    result = folders.load(folder)
    for sentence in findings(result):
        assert f"- {sentence.replace('**', '')}" in output
    assert f"wrote {folder / 'report.html'}" in output and "flare" in output
    assert "note: closed: given as embeddings" in output


def test_findings_open_with_the_recommendation_and_name_figures(audited):
    result = folders.load(audited[0])
    steps, report = result.choice.steps, result.reports["overlap"]
    said = findings(result)
    assert said[0].startswith("**") and f"{steps[0].mrr:.3f}" in said[0]
    assert set(result.choice.members) <= {"a", "b"}
    kept = {row["member"]: row["overlap@5"] for row in report.rows}
    assert any(f"closed {100 * kept['closed']:.0f} %" in sentence for sentence in said)
    # The file leads the neighbours, but was never looked for a piece of text.
    looked = result.reports["selfretrieval"]
    assert "The texts are short" in looked.warnings[0]
    (differ,) = [sentence for sentence in said if sentence.startswith("The audits differ")]
    assert "closed comes first by neighbour overlap" in differ
    tied = " and ".join(looked.details["leaders"])
    assert tied.count(" and ") == 1 and differ.endswith(f"and cannot tell {tied} apart.")


def test_the_page_shows_the_numbers_of_the_report(audited):
    folder, _ = audited
    html = (folder / "report.html").read_text(encoding="utf-8")
    result = folders.load(folder)
    table = html[html.index("<table>") : html.index("</table>")]
    for row in result.reports["selfretrieval"].rows:
        assert f'data-value="{row["cloze_mrr"]}"' in table
    headings = re.findall(r"<h2>(.*?)</h2>", html)
    assert headings[0] == "Findings" and headings[-1] == "Recommended members"
    assert len(headings) == 2 + len(running.NAMES)
    last = html[html.rindex("<table>") :]
    shown = [step.member for step in result.choice.steps]
    assert re.findall(r'<td data-value="(a|b)"', last) == shown
    # What another tool embedded is judged by arrays, and cannot be looked for pieces.
    assert "closed: given as embeddings" in html
    # Every figure speaks to those who cannot see it.
    labels = re.findall(r'<div role="img" aria-label="([^"]*)"', html)
    assert len(labels) == html.count("<figure") >= 15 and all(labels)


def test_the_same_seed_gives_the_same_report(audited, files):
    done = command(files, files / "again", "--skip", "flare")
    assert done.exit_code == 0
    one, other = (
        json.loads((folder / "report.json").read_text()) for folder in (audited[0], files / "again")
    )
    assert one["audits"].pop("flare")["settings"]["seeds"] == [1]
    assert one == other
    probes = [folder / "probes" / "a.npz" for folder in (audited[0], files / "again")]
    assert probes[0].read_bytes() == probes[1].read_bytes()


def test_the_page_follows_from_the_report_alone(audited, tmp_path):
    write(folders.load(audited[0]), tmp_path, "corpus.jsonl")
    assert (tmp_path / "report.html").read_bytes() == (audited[0] / "report.html").read_bytes()


def test_the_page_in_a_browser(audited):
    file = audited[0] / "report.html"
    n_figures = file.read_text(encoding="utf-8").count("<figure")
    with browsing.browser() as browser:
        for width in (1280, 400):
            page, asked, errors = browsing.opened(browser, file, width)
            assert asked == [file.as_uri()], "a request leaves the page"
            assert errors == []
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            boxes = [svg.bounding_box() for svg in page.locator("figure svg").all()]
            assert len(boxes) == n_figures
            assert all(box["height"] > 50 for box in boxes)
            assert all(box["x"] >= 0 and box["x"] + box["width"] <= width for box in boxes)
            # Letters of a figure, as the screen shows them, in pixels.
            size = "svg => svg.getBoundingClientRect().width / svg.viewBox.baseVal.width"
            scales = [svg.evaluate(size) for svg in page.locator("figure svg").all()]
            assert min(scales) * 9.5 > 8
            fonts = page.locator("p, li, td").evaluate_all(
                "all => all.map(e => parseFloat(getComputedStyle(e).fontSize))"
            )
            assert min(fonts) >= 13
        names = browsing.column(page, 1)
        assert sorted(names) == ["a", "b", "closed"]
        page.get_by_role("button", name="member").first.click()
        assert browsing.column(page, 1) == ["a", "b", "closed"]
        page.get_by_role("button", name="dims").first.click()
        assert browsing.column(page, 2) == ["64", "48", "24"]
        # A fold opens, and the table within is wider than a telephone, but not the page.
        page.locator("summary").first.click()
        assert page.locator("details[open] table").first.is_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_texts_of_the_corpus_are_never_markup(files, texts):
    """The examples of the words section come from the corpus, which is anybody's."""
    hostile = '<img src=x onerror="alert(1)"> `code` **bold** '
    lines = [{"_id": str(i), "text": hostile + text} for i, text in enumerate(texts[:80])]
    write_lines(files / "hostile.jsonl", lines)
    done = run(
        "audit", "--members", "a=hashing:32", "--corpus", files / "hostile.jsonl",
        "--only", "flip", "--out", files / "hostile",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    html = (files / "hostile" / "report.html").read_text(encoding="utf-8")
    assert "&lt;img src=x onerror=&quot;alert(1)&quot;&gt; `code` **bold** " in html
    assert "<img" not in html and "<code>code" not in html and "<strong>bold" not in html


def test_words_of_any_text(audited):
    folder, _ = audited
    text = "river mountain database python"
    shown = run("words", "--audit", folder, "--top-k", 12, text)
    assert shown.exit_code == 0, shown.output
    assert shown.output.splitlines()[0] == text and "closed" not in shown.output
    found = json.loads(run("words", "--audit", folder, "--top-k", 12, "--json", text).output)
    assert set(found["members"]) == {"a", "b"}
    from uec.audits.flip import Probe, words
    from uec.encoders.hashing import HashingEncoder
    from uec.records import MemberSpec

    probe = Probe.load(folder / "probes" / "a.npz")
    embedding = HashingEncoder(MemberSpec("a", "hashing:64")).encode([text], "document").mean[0]
    expected = words(probe, embedding, 12)
    assert [word for word, _ in found["members"]["a"]] == [word for word, _ in expected]
    # Character n-grams hold the words themselves: most of the four are among the first twelve.
    assert len(set(text.split()) & {word for word, _ in expected}) >= 3


def test_words_of_another_encoder_are_refused(audited, tmp_path):
    folder, _ = audited
    content = json.loads((folder / "report.json").read_text())
    content["members"][0]["spec"]["model"] = "hashing:64:9"
    (tmp_path / "report.json").write_text(json.dumps(content))
    (tmp_path / "probes").symlink_to(folder / "probes")
    done = run("words", "--audit", tmp_path, "river")
    assert done.exit_code == 1 and "members.a" in done.output and "model" in done.output


def test_an_ensemble_is_audited_by_its_folder(files, ensemble):
    ensemble.save(files / "ensemble")
    done = run(
        "audit", "--ensemble", files / "ensemble", "--members", "plain=hashing:8",
        "--corpus", files / "corpus.jsonl", "--only", "agreement", "--n-texts", 40,
        "--out", files / "of-ensemble",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    result = folders.load(files / "of-ensemble")
    assert result.names == ["a", "b", "c", "plain"] and list(result.reports) == ["agreement"]
    assert result.reports["agreement"].n_texts == 40


def test_repeated_texts_are_left_out_and_said(files, texts):
    lines = [{"_id": str(i), "text": text} for i, text in enumerate([*texts[:60], *texts[:20], ""])]
    write_lines(files / "repeated.jsonl", lines)
    done = run(
        "audit", "--members", "a=hashing:32", "--corpus", files / "repeated.jsonl",
        "--only", "geometry", "--out", files / "repeated",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "Of 81 documents 20 repeat an earlier one and 1 are empty" in done.output
    assert folders.load(files / "repeated").reports["geometry"].n_texts == 60


def test_a_collapsed_member_is_diagnosed_with_what_to_do(files):
    rng = np.random.default_rng(0)
    sound = rng.normal(size=(150, 24))
    collapsed = np.ones((150, 24)) + 1e-3 * rng.normal(size=(150, 24))
    np.save(files / "sound.npy", sound)
    np.save(files / "collapsed.npy", collapsed)
    done = run(
        "audit", "--members", f"sound={files / 'sound.npy'}",
        "--members", f"ill={files / 'collapsed.npy'}", "--corpus", files / "corpus.jsonl",
        "--only", "geometry", "--out", files / "collapse",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "Collapsed vectors: ill (token" in done.output
    result = folders.load(files / "collapse")
    geometry = next(s for s in sections(result) if s.heading == "Geometry and collapse")
    tables = [block for block in geometry.body if getattr(block, "caption", "").startswith("Coll")]
    assert tables[0].rows[0][:2] == ["ill", "token"] and "leave it" in tables[0].rows[0][3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "magic"], "no audit magic; there are: selfretrieval"),
        (["--only", "overlap"], "audit overlap: it needs pairs of texts; give --pairs FILE"),
        (["--n-texts", "0"], "n_texts must be at least 1, got 0"),
        (["--n-spans", "29"], "n_spans must be at least 30, got 29"),
        (["--label", "topic"], "has no key 'topic'"),
        (["--pairs", "short.jsonl"], "short.jsonl:2: no key 'passage'"),
        (["--pairs", "bad.tsv"], "bad.tsv:2: got 1 tab-separated columns, expected 2"),
        (["--members", "c=nan.npy"], "row 5 of 'corpus' in nan.npy holds NaN"),
        (["--members", "c=few.npy"], "has 149 rows for 150 documents in the corpus file"),
        (
            ["--members", "c=uneven.npz", "--pairs", "pairs.jsonl"],
            "'passages' of uneven.npz has 140 rows for 150 pairs in the pairs file",
        ),
        (["--members", "a=hashing:8"], "member names must be unique"),
        (["--members", "c=none.npy"], "no such file: none.npy"),
        (["--out", "corpus.jsonl"], "cannot write a report to corpus.jsonl"),
    ],
)
def test_mistakes_end_in_one_line(arguments, message, files, monkeypatch):
    monkeypatch.chdir(files)
    write_lines(files / "short.jsonl", [{"query": "a", "passage": "b"}, {"query": "alone"}])
    (files / "bad.tsv").write_text("a\tb\nalone\n")
    matrix = np.ones((150, 4))
    np.save("few.npy", matrix[:149])
    np.savez("uneven.npz", corpus=matrix, queries=matrix, passages=matrix[:140])
    matrix[5, 2] = np.nan
    np.save("nan.npy", matrix)
    usual = ["--members", "a=hashing:16", "--corpus", "corpus.jsonl", "--out", "refused"]
    done = run("audit", *usual, *arguments)
    assert done.exit_code == 1, done.output
    assert message in done.output
    assert len(done.output.strip().splitlines()) == 1


def test_thirty_texts_are_audited_as_far_as_they_go(files, texts):
    lines = [{"_id": str(i), "text": text} for i, text in enumerate(texts[:30])]
    write_lines(files / "thirty.jsonl", lines)
    done = run(
        "audit", "--members", "a=hashing:64", "--members", "b=hashing:48:1",
        "--corpus", files / "thirty.jsonl", "--out", files / "thirty",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "note: no flare: 30 texts are too few for this audit; give at least 50" in done.output
    html = (files / "thirty" / "report.html").read_text(encoding="utf-8")
    assert "No information (FLARE): 30 texts are too few" in html
    assert "Only 30 texts: figures move by several hundredths" in html


def test_no_words_without_probes(files, tmp_path):
    run(
        "audit", "--members", "a=hashing:16", "--corpus", files / "corpus.jsonl",
        "--only", "geometry", "--out", files / "wordless",
    )  # fmt: skip
    done = run("words", "--audit", files / "wordless", "river")
    assert done.exit_code == 1 and "no word probes of members that encode text" in done.output
    done = run("words", "--audit", tmp_path, "river")
    assert done.exit_code == 1 and "write one with `uec audit --out" in done.output


@pytest.mark.parametrize("package", audits.PACKAGES)
def test_a_missing_package_names_the_command_before_anything_is_read(package, monkeypatch):
    monkeypatch.setattr(audits, "find_spec", lambda name: None if name == package else object())
    for command in (
        ("audit", "--members", "a=hashing:8", "--corpus", "none.jsonl", "--out", "none"),
        ("words", "--audit", "none", "river"),
    ):
        done = run(*command)
        assert done.exit_code == 1
        assert done.output.strip() == (
            f"error: uec audit needs the package {package!r}, which is not installed; "
            "run: pip install 'uec[audit]'"
        )


def test_the_extra_brings_every_package():
    """`PACKAGES` and the extra say the same; sentence-transformers brings torch."""
    config = configparser.ConfigParser()
    config.read(Path(__file__).parent.parent / "setup.cfg")
    extras = config["options.extras_require"]
    brought = {
        re.split(r"[<>=[]", line)[0] for line in (extras["audit"] + extras["models"]).split()
    }
    names = {"faiss": "faiss-cpu", "sklearn": "scikit-learn", "torch": "sentence-transformers"}
    assert {names.get(package, package) for package in audits.PACKAGES} <= brought


def test_help_loads_nothing_of_the_audits():
    code = (
        "import sys; from click.testing import CliRunner; from uec.cli import main; "
        "out = CliRunner().invoke(main, ['audit', '--help']).output; "
        "assert 'selfretrieval' in out, out; print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"torch", "sklearn", "zuko", "matplotlib", "jinja2", "faiss"}


def test_adversarial_pairs_translations_and_names_from_files(files, texts, tmp_path):
    documents = [
        {"_id": str(i), "text": text, "who": text.split()[:1]} for i, text in enumerate(texts)
    ]
    corpus = write_lines(tmp_path / "c.jsonl", documents)
    swapped = [{"query": t, "passage": " ".join(reversed(t.split()))} for t in texts[:30]]
    other = write_lines(tmp_path / "other.jsonl", swapped)
    given = (
        "audit", "--members", "a=hashing:64", "--members", "b=hashing:48:1", "--corpus", corpus,
        "--out", tmp_path / "out", "--only", "geometry", "--only", "flip",
        "--adversarial", other, "--entities", "who",
    )  # fmt: skip
    done = run(*given, "--parallel", f"back={other}")
    assert done.exit_code == 0, done.output
    reports = folders.load(tmp_path / "out").reports
    assert reports["geometry"].rows[0]["alignment_adversarial"] > 0
    assert {"drop_back", "entities_strict"} <= set(reports["flip"].rows[0])
    refused = run(*given, "--parallel", "back")
    assert refused.exit_code == 1 and "'back': expected LANGUAGE=FILE" in refused.output
