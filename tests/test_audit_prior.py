"""A prior from an audit: only the members' places count, and only the members that were judged."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from uec.auditing import folder as folders
from uec.auditing.folder import Audited
from uec.auditing.prior import read_trust
from uec.build import build_index
from uec.calibrating import MemberTrust, calibrate, calibrate_index, look
from uec.errors import InputError, MismatchError, NotFoundError
from uec.fusion import correlation
from uec.records import AuditReport, Query
from uec.retriever import Retriever
from uec.trust import log_prior


def report(values, higher_is_better=True, rank_by="measure"):
    rows = tuple({"member": name, "measure": value} for name, value in values.items())
    return AuditReport("own", {}, 10, rows, rank_by, higher_is_better)


def saved(folder, **reports):
    names = ["a", "b", "c"]
    members = [{"name": name, "spec": None, "identity": {"model": name}} for name in names]
    folders.save(Audited({}, members, reports), folders.prepare(folder))
    return folder


def test_places_become_trust_whatever_the_unit(tmp_path):
    folder = saved(
        tmp_path,
        nats=report({"a": 900.0, "b": -3.0, "c": 2.0}),
        distance=report({"a": 900.0, "b": -3.0, "c": 2.0}, higher_is_better=False),
        even=report({"a": 0.2, "b": 0.2, "c": 0.1}),
    )

    def places(audit):
        return {name: np.exp(log) for name, log in read_trust(folder, audit).log_trust.items()}

    assert places("nats") == pytest.approx({"a": 3, "b": 1, "c": 2})
    assert places("distance") == pytest.approx({"a": 1, "b": 3, "c": 2})
    assert places("even") == pytest.approx({"a": 2.5, "b": 2.5, "c": 1})
    even = read_trust(folder, "even")
    assert even.source == "audit even (measure)"
    assert even.identity["b"] == {"model": "b"}


def test_an_audit_that_cannot_rank_is_refused(tmp_path):
    folder = saved(
        tmp_path / "r",
        good=report({"a": 1.0, "b": 2.0, "c": 3.0}),
        agreement=report({"a": 1.0, "b": 2.0, "c": 3.0}, rank_by=None),
        partial=report({"a": 1.0, "b": 2.0}),
        empty=report({"a": 1.0, "b": float("nan"), "c": 3.0}),
    )
    with pytest.raises(InputError, match="no ranking by 'agreement'; it has: empty, good, partial"):
        read_trust(folder, "agreement")
    with pytest.raises(InputError, match=r"'partial' in .* is not known of c"):
        read_trust(folder, "partial")
    with pytest.raises(InputError, match=r"'empty' in .* is not known of b"):
        read_trust(folder, "empty")
    with pytest.raises(NotFoundError, match="uec audit"):
        read_trust(tmp_path, "good")


def trust_of(retriever, *values):
    identity = {m.name: dict(m.encoder.identity) for m in retriever.ensemble.members}
    names = retriever.ensemble.names
    return MemberTrust("audit own", dict(zip(names, values, strict=True)), identity)


@pytest.mark.parametrize("order", [(3.0, 0.0, -3.0), (-3.0, 0.0, 3.0), (0.0, 3.0, -3.0)])
def test_the_prior_follows_the_audit_and_not_the_spans(retriever, order):
    found = calibrate(retriever, n_spans=40, trust=trust_of(retriever, *order))
    alike = correlation(look(retriever, 40, "kron", 0).mean)
    np.testing.assert_allclose(found.log_prior, log_prior(np.array(order), alike))
    assert np.argmax(found.log_prior) == np.argmax(order)
    assert found.report["prior"] == "audit own"
    # Everything else is still learnt from the spans.
    own = calibrate(retriever, n_spans=40)
    assert own.report["prior"] == "spans"
    np.testing.assert_array_equal(found.peaks.mean, own.peaks.mean)
    for name, member in own.report["members"].items():
        assert found.report["members"][name]["cloze_mrr"] == member["cloze_mrr"]


def test_trust_that_does_not_fit_the_index_is_refused(
    retriever, ensemble, located, texts, tmp_path
):
    good = trust_of(retriever, 1.0, 0.0, -1.0)
    partial = dataclasses.replace(good, log_trust={"a": 1.0, "b": 0.0})
    with pytest.raises(InputError, match="audit own does not know c; it knows a, b"):
        calibrate(retriever, n_spans=40, trust=partial)
    other = dataclasses.replace(good, identity={"b": {**good.identity["b"], "dimension": 7}})
    with pytest.raises(MismatchError, match=r"members\.b\.dimension"):
        calibrate(retriever, n_spans=40, trust=other)
    judged = ([Query("q", texts[0])], {"q": {"d0": 1}})
    with pytest.raises(InputError, match="cannot both give the prior"):
        calibrate(retriever, n_spans=40, trust=good, judged=judged)
    build_index(ensemble, located, tmp_path / "index", bm25=True)
    worded = Retriever.open(tmp_path / "index")
    before = worded.index.artefact.fingerprint
    with pytest.raises(InputError, match="ranks encoders only"):
        calibrate_index(tmp_path / "index", n_spans=40, trust=good)
    assert Retriever.open(tmp_path / "index").index.artefact.fingerprint == before
