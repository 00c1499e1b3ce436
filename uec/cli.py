"""The command line: every command is a library call with flags.

Imports happen inside the commands, so that ``uec --help`` answers at once and ``uec search`` never
loads what only a fit needs.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from uec import __version__, screen
from uec.errors import InputError, UECError
from uec.records import FUSIONS, POSTERIOR_KINDS

if TYPE_CHECKING:
    from uec.laplace import FitSettings
    from uec.records import MemberSpec, Pair

FOLDER = click.Path(path_type=Path)
FILE = click.Path(path_type=Path)


class _Group(click.Group):
    """Turns this package's errors into one line and exit code 1; others are bugs and show."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except UECError as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(1)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """Several text embedders behind one search, each trusted as far as it knows the query."""
    # Raised while third-party packages are imported; nothing a user can act on.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch")


@main.command()
@click.option(
    "--member",
    "members",
    multiple=True,
    metavar="NAME=MODEL",
    help="A sentence-transformers hub id or folder, or pkg:NAME. Repeat for each member.",
)
@click.option(
    "--members-file",
    type=FILE,
    help="JSON list of objects: name, model, revision, query_prompt, document_prompt, max_length.",
)
@click.option(
    "--pairs",
    "pairs",
    multiple=True,
    metavar="[NAME=]FILE",
    help="Competence pairs (JSONL or TSV of query, passage): data like the encoders' training "
    "data, in languages that they know. NAME= gives one member its own.",
)
@click.option(
    "--corpus",
    type=FILE,
    help="Take pairs from this corpus instead: a sentence and the rest of its passage.",
)
@click.option("--n-pairs", default=2000, show_default=True, help="Pairs used at the most.")
@click.option("--out", type=FOLDER, required=True, help="Ensemble folder to write.")
@click.option("--batch-size", default=64, show_default=True, help="Candidates a text of the fit.")
@click.option(
    "--contrastive-temperature",
    default=0.05,
    show_default=True,
    help="Of the likelihood; the one the encoders were trained with if you know it.",
)
@click.option("--prior-precision", type=float, help="Fixed; default: marginal likelihood.")
@click.option(
    "--damping", type=float, help="Of the Kronecker factors; default: held-out likelihood."
)
@click.option("--rank", default=256, show_default=True, help="Directions the Kronecker form keeps.")
@click.option(
    "--paper",
    is_flag=True,
    help="The published code's choices: empirical Fisher, prior precision 1e-5.",
)
@click.option("--seed", default=0, show_default=True)
def fit(
    members: tuple[str, ...],
    members_file: Path | None,
    pairs: tuple[str, ...],
    corpus: Path | None,
    n_pairs: int,
    out: Path,
    batch_size: int,
    contrastive_temperature: float,
    prior_precision: float | None,
    damping: float | None,
    rank: int,
    paper: bool,
    seed: int,
) -> None:
    """Fit the posteriors of an ensemble's members and write an ensemble folder."""
    from uec.ensemble import check_specs
    from uec.laplace import PAPER_SETTINGS, FitSettings

    specs = _specs(members, members_file)
    check_specs(specs)
    settings = FitSettings(
        batch_size=batch_size,
        temperature=contrastive_temperature,
        prior_precision=prior_precision,
        damping=damping,
        rank=rank,
    )
    by_member = _pairs(specs, pairs, corpus, n_pairs, seed)
    _fit(specs, by_member, PAPER_SETTINGS if paper else settings, out, seed)


def _fit(
    specs: list[MemberSpec],
    pairs: dict[str, list[Pair]],
    settings: FitSettings,
    out: Path,
    seed: int,
) -> None:
    from uec.fitting import fit_ensemble

    total = 2 * sum(len(own) for own in pairs.values())
    with screen.progress("fitting", total) as advance:
        ensemble = fit_ensemble(specs, pairs, settings, seed=seed, progress=advance)
    artefact = ensemble.save(out)
    screen.table(
        ("member", "dims", "pairs", "prior precision (kron)", "partner probability", "readout"),
        [
            (
                member.name,
                member.encoder.dimension,
                member.fit["report"]["n_pairs"],
                f"{member.fit['report']['kron_prior_precision']:.3g}",
                f"{member.fit['report']['partner_probability']:.2f}",
                member.encoder.identity["readout"]["kind"],
            )
            for member in ensemble.members
        ],
    )
    click.echo(f"wrote ensemble {out} (fingerprint {artefact.fingerprint[:12]})")
    click.echo(
        "its uncertainty says how new a text is to these pairs; how good each member is on your "
        "corpus is learnt by `uec index`"
    )


@main.command()
@click.option("--ensemble", "ensemble_path", type=FOLDER, required=True, help="From `uec fit`.")
@click.option(
    "--corpus", type=FILE, required=True, help="JSONL, JSONL.gz or BEIR folder: _id, title, text."
)
@click.option("--out", type=FOLDER, required=True, help="Index folder to write.")
@click.option(
    "--variance",
    type=click.Choice(["sketch", "full"]),
    default="sketch",
    show_default=True,
    help="full also stores every variance, three times the size; for comparison.",
)
@click.option(
    "--bm25", is_flag=True, help="Also index the words: a member for names, numbers and rare terms."
)
@click.option("--batch-size", default=32, show_default=True, help="Texts a forward pass.")
@click.option(
    "--calibrate/--no-calibrate",
    "calibrated",
    default=True,
    show_default=True,
    help="Learn each member's weight on this corpus afterwards, as `uec calibrate` does.",
)
def index(
    ensemble_path: Path,
    corpus: Path,
    out: Path,
    variance: str,
    bm25: bool,
    batch_size: int,
    calibrated: bool,
) -> None:
    """Embed a corpus with every member and write an index folder."""
    from uec.build import build_index
    from uec.ensemble import Ensemble
    from uec.readers import read_corpus_lines

    documents = read_corpus_lines(corpus)
    ensemble = Ensemble.load(ensemble_path)
    with screen.progress("indexing", None) as advance:
        artefact = build_index(
            ensemble,
            documents,
            out,
            variance=variance,  # type: ignore[arg-type]
            bm25=bm25,
            batch_size=batch_size,
            progress=advance,
        )
    n = artefact.content["n_documents"]
    for name, cut in artefact.content["truncated"].items():
        if cut:
            click.echo(f"note: {name} cut {cut} of {n} documents to its maximum length", err=True)
    screen.fit_texts_warning(artefact.content)
    click.echo(f"wrote index {out}: {n} documents (fingerprint {artefact.fingerprint[:12]})")
    if calibrated:
        try:
            _calibrate(out)
        except InputError as error:
            click.echo(f"note: the index is not calibrated: {error}", err=True)


@main.command()
@click.option("--index", "index_path", type=FOLDER, required=True, help="From `uec index`.")
@click.option("--n-spans", type=int, help="Pieces of text to look for. [default: 400]")
@click.option("--posterior", type=click.Choice(POSTERIOR_KINDS), default="kron", show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--queries", type=FILE, help="Judged queries, where you have some: JSONL or TSV.")
@click.option("--qrels", type=FILE, help="Their judgements, as in BEIR or TREC.")
@click.option("--query-log", type=FILE, help="Queries as they were asked, without judgements.")
@click.option(
    "--prior",
    type=click.Choice(["spans", "audit"]),
    default="spans",
    show_default=True,
    help="Weigh members by the pieces of text that they find, or by their places in an audit.",
)
@click.option("--audit", "folder", type=FOLDER, help="From `uec audit`, for --prior audit.")
@click.option("--by", "audit", help="The audit that ranks. [default: selfretrieval]")
def calibrate(
    index_path: Path,
    queries: Path | None,
    qrels: Path | None,
    query_log: Path | None,
    prior: str,
    folder: Path | None,
    audit: str | None,
    **settings: Any,
) -> None:
    """Learn how far each member can be trusted on an index's corpus, without labels.

    Pieces of the corpus are looked for, as they stand and with the piece cut out of its document;
    members that find them weigh more. The index is published anew with the weights.
    """
    from uec.readers import read_qrels, read_queries

    if (queries is None) != (qrels is None):
        raise InputError("give both --queries and --qrels, or neither")
    if queries is not None and qrels is not None:
        settings["judged"] = (read_queries(queries), read_qrels(qrels))
    if query_log is not None:
        settings["log"] = [query.text for query in read_queries(query_log)]
    if (prior == "audit") != (folder is not None) or (audit is not None and folder is None):
        raise InputError("give --prior audit and --audit DIR together; --by needs both")
    if folder is not None:
        from uec.auditing.prior import read_trust

        settings["trust"] = read_trust(folder, audit or "selfretrieval")
    _calibrate(index_path, **{name: value for name, value in settings.items() if value is not None})


def _calibrate(path: Path, **settings: Any) -> None:
    from uec.calibrating import calibrate_index
    from uec.storage import open_artefact

    with screen.progress("calibrating", None) as advance:
        calibration = calibrate_index(path, progress=advance, **settings)
    screen.calibration(calibration)
    fingerprint = open_artefact(path, "index", verify=False).fingerprint
    click.echo(f"calibrated index {path} (fingerprint {fingerprint[:12]})")


def _search_options(command: Callable[..., None]) -> Callable[..., None]:

    options = (
        click.option("--top-k", default=10, show_default=True, help="Hits to return."),
        click.option("--n-candidates", default=1000, show_default=True, help="Reranked."),
        click.option(
            "--posterior", type=click.Choice(POSTERIOR_KINDS), default="kron", show_default=True
        ),
        click.option(
            "--temperature",
            type=float,
            help="Of the weights: 1 follows the traces, inf the prior alone. Default: the index's.",
        ),
        click.option("--beta", type=float, help="Weight of the variance in the score; 0: none."),
        click.option("--fusion", type=click.Choice(FUSIONS), default="concat", show_default=True),
        click.option("--weights", metavar="NAME=W,…", help="Fixed weights instead of the traces'."),
        click.option(
            "--max-risk", type=float, help="Say where more than this share would be wrong."
        ),
        click.option("--explain", is_flag=True, help="Show what each member says of each hit."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@main.command()
@click.option("--index", "index_path", type=FOLDER, required=True, help="From `uec index`.")
@_search_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object a query.")
@click.argument("queries", nargs=-1, required=True)
def search(
    index_path: Path,
    as_json: bool,
    queries: tuple[str, ...],
    weights: str | None,
    **options: Any,
) -> None:
    """Search an index for one or more QUERIES."""
    from uec.retriever import Retriever

    retriever = Retriever.open(index_path)
    rankings = retriever.search(list(queries), weights=_weights(weights), **options)
    for ranking in rankings:
        if as_json:
            click.echo(json.dumps(asdict(ranking), ensure_ascii=False))
        else:
            screen.ranking(ranking)


@main.command()
@click.option("--index", "index_path", type=FOLDER, required=True, help="From `uec index`.")
@click.option("--address", default="127.0.0.1:50051", show_default=True, metavar="HOST:PORT")
def serve(index_path: Path, address: str) -> None:
    """Serve an index over gRPC until SIGTERM."""
    from uec_server.app import serve as run

    sys.exit(run(index_path, address))


@main.command()
@click.option("--ensemble", "ensemble_path", type=FOLDER, help="From `uec fit`: all its members.")
@click.option(
    "--member",
    "--members",
    "members",
    multiple=True,
    metavar="NAME=MODEL|FILE",
    help="A model as for `uec fit`, or its embeddings of the corpus: FILE.npy, one row a document; "
    "FILE.npz with corpus, queries and passages. Repeat for each member.",
)
@click.option(
    "--corpus", type=FILE, required=True, help="JSONL, JSONL.gz or BEIR folder: _id, title, text."
)
@click.option("--pairs", type=FILE, help="JSONL or TSV of query and passage, or translations.")
@click.option("--out", type=FOLDER, required=True, help="Folder for report.html and report.json.")
@click.option("--n-texts", default=2000, show_default=True, help="Texts to judge on, at random.")
@click.option("--n-spans", default=400, show_default=True, help="Pieces of text to look for.")
@click.option("--label", metavar="KEY", help="Key of the documents that colours the maps.")
@click.option(
    "--entities",
    metavar="KEY",
    help="Key of the documents with a list of the names in each: does an embedding hold them?",
)
@click.option(
    "--adversarial",
    type=FILE,
    help="Pairs as --pairs, with the same words and another meaning: are they kept apart?",
)
@click.option(
    "--parallel",
    "parallel",
    multiple=True,
    metavar="LANGUAGE=FILE",
    help="Pairs of a text in the corpus's language and its translation: are words held there too?",
)
@click.option("--only", multiple=True, metavar="AUDIT", help="Run this one only. Repeatable.")
@click.option("--skip", multiple=True, metavar="AUDIT", help="Do not run this one. Repeatable.")
@click.option("--seed", default=0, show_default=True)
def audit(
    ensemble_path: Path | None, members: tuple[str, ...], corpus: Path, out: Path, **options: Any
) -> None:
    """Judge members without labels and write a report for people.

    Audits: selfretrieval, overlap and ica (of --pairs), agreement, geometry, flip (words that an
    embedding holds), flare (information, the slowest).
    """
    from uec import audits

    audits.check_installed()
    from uec.auditing import folder as folders
    from uec.auditing import gathering, report, running, sampling, verdict

    names = running.chosen(options["only"], options["skip"])
    seed, n_texts = options["seed"], options["n_texts"]
    sample = sampling.read_sample(corpus, n_texts, seed, options["label"], options["entities"])
    same, adversarial = (
        options[kind] and sampling.read_pair_sample(options[kind], n_texts, seed)
        for kind in ("pairs", "adversarial")
    )
    parallel = {}
    for given in options["parallel"]:
        language, path = _named("--parallel", given, "LANGUAGE=FILE")
        parallel[language] = sampling.read_pair_sample(Path(path), n_texts, seed)
    pairs = sampling.PairSets(same, adversarial, parallel)
    subjects = gathering.open_members(ensemble_path, members)
    folder = folders.prepare(out)
    result = running.run(
        subjects,
        sample,
        pairs,
        names=names,
        insist=bool(options["only"]),
        n_spans=options["n_spans"],
        seed=seed,
        bar=screen.progress,
        probes=folder / folders.PROBES,
    )
    folders.save(result, folder)
    page = report.write(result, folder, corpus.name)
    screen.audit(result, verdict.findings(result), page)


@main.command()
@click.argument("texts", nargs=-1, required=True, metavar="TEXT...")
@click.option("--audit", "folder", type=FOLDER, required=True, help="From `uec audit --out`.")
@click.option("--top-k", default=10, show_default=True, help="Words a member.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a text.")
def words(texts: tuple[str, ...], folder: Path, top_k: int, as_json: bool) -> None:
    """Say which words each member's embedding of a TEXT holds."""
    from uec import audits

    audits.check_installed()
    from uec.auditing.words import words_held

    for found in words_held(folder, texts, top_k):
        if as_json:
            click.echo(json.dumps(asdict(found), ensure_ascii=False))
        else:
            screen.words(found)


@main.command()
@click.argument("path", type=FOLDER)
@click.option("--json", "as_json", is_flag=True, help="The whole manifest.")
def info(path: Path, as_json: bool) -> None:
    """Say what an ensemble or index folder holds, and check its files."""
    from uec.calibration import Calibration
    from uec.storage import open_artefact

    artefact = open_artefact(path, None)
    if as_json:
        click.echo(json.dumps(artefact.manifest, indent=1, ensure_ascii=False))
        return
    content = artefact.content
    kind = artefact.manifest["kind"]
    click.echo(f"{kind} {path}, written {artefact.manifest['created']}, all checksums right")
    click.echo(f"fingerprint {artefact.fingerprint}")
    if kind == "index":
        click.echo(f"{content['n_documents']} documents, {content['variance']} variance")
    ensemble = content["ensemble"] if kind == "index" else content
    members = ensemble["members"]
    screen.table(
        ("member", "model", "dims", "max length", "query prompt", "fit pairs", "pairs sha256"),
        [
            (
                member["spec"]["name"],
                member["spec"]["model"],
                member["identity"]["dimension"],
                member["identity"]["max_length"],
                repr(member["identity"]["query_prompt"]),
                member["fit"]["report"]["n_pairs"],
                member["fit"]["pairs_sha256"][:12],
            )
            for member in members
        ],
    )
    if kind == "index":
        screen.fit_texts_warning(content)
        calibration = Calibration.from_json(ensemble["calibration"])
        if calibration.report is None:
            click.echo("not calibrated: members weigh the same; run `uec calibrate`")
        else:
            screen.calibration(calibration)


@main.command()
@click.option("--keep", type=FOLDER, help="Keep the ensemble and index in this folder.")
def demo(keep: Path | None) -> None:
    """Fit, index, serve and search this Python's own docstrings with three real encoders."""
    from uec.demo import run

    run(keep)


def _named(option: str, given: str, form: str) -> tuple[str, str]:
    """Both sides of ``NAME=VALUE``."""
    name, _, value = given.partition("=")
    if not value:
        raise InputError(f"{option} {given!r}: expected {form}")
    return name, value


def _specs(members: tuple[str, ...], members_file: Path | None) -> list[MemberSpec]:
    from uec.records import MemberSpec

    specs = []
    for item in members:
        specs.append(MemberSpec(*_named("--member", item, "NAME=MODEL")))
    if members_file is not None:
        try:
            specs += [MemberSpec(**entry) for entry in json.loads(members_file.read_text("utf-8"))]
        except (OSError, ValueError, TypeError) as error:
            raise InputError(f"{members_file}: not a JSON list of members: {error}") from error
    if not specs:
        raise InputError("no members: give --member NAME=MODEL or --members-file FILE")
    return specs


def _pairs(
    specs: list[MemberSpec],
    given: tuple[str, ...],
    corpus: Path | None,
    n_pairs: int,
    seed: int,
) -> dict[str, list[Pair]]:
    """Pairs of each member: its own, else the common ones, else sentences of the corpus."""
    from itertools import islice

    from uec.readers import read_corpus, read_pairs

    names = {spec.name for spec in specs}
    files: dict[str, Path] = {}
    for item in given:
        name, equals, path = item.partition("=")
        files[name if equals and name in names else ""] = Path(
            path if equals and name in names else item
        )
    if not files and corpus is None:
        raise InputError("no pairs: give --pairs FILE, --pairs NAME=FILE or --corpus FILE")
    read = {key: list(islice(read_pairs(path), n_pairs)) for key, path in files.items()}
    if corpus is not None and "" not in read:
        from uec.selfretrieval import sentence_pairs

        read[""] = sentence_pairs(read_corpus(corpus), n_pairs, seed)
    return {spec.name: read.get(spec.name, read.get("", [])) for spec in specs}


def _weights(text: str | None) -> dict[str, float] | None:
    if text is None:
        return None
    try:
        return {name: float(w) for name, w in (item.split("=") for item in text.split(","))}
    except ValueError:
        raise InputError(f"--weights {text!r}: expected NAME=NUMBER,NAME=NUMBER") from None


if __name__ == "__main__":
    main()
