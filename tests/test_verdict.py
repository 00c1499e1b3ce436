"""What all audits say together: who to keep, whether they agree, and what not to rely on."""

from __future__ import annotations

import pytest

from uec.auditing.folder import Audited
from uec.auditing.selection import Choice, Step
from uec.auditing.verdict import findings, listed, p_words, ranked, recommendation, signed
from uec.records import AuditReport

MEMBERS = [{"name": name} for name in ("a", "b", "c")]


def step(member, mrr, gain=0.0, p_value=1.0, worth=True):
    return Step(member, mrr, gain, 0.01, p_value, {member: 1.0}, worth)


def report(audit, key=None, *, details=None, said=("first.", "second."), higher=True, **values):
    rows = tuple({"member": name, key or "x": value} for name, value in values.items())
    settings = {"n_spans": 400}
    return AuditReport(audit, settings, 9, rows, key, higher, said, (), details or {})


def audited(*reports, choice=None):
    return Audited({}, MEMBERS, {one.audit: one for one in reports}, choice=choice)


LOOKED = report("selfretrieval", "cloze_mrr", a=0.5, b=0.7, c=0.6, details={"leaders": ["b"]})


def test_a_set_is_recommended_with_what_each_adds():
    choice = Choice(
        (
            step("b", 0.7),
            step("c", 0.75, 0.05, 0.0001),
            step("a", 0.751, 0.001, 0.4, worth=False),
        ),
        2,
    )
    said = recommendation(choice, {"selfretrieval": LOOKED})
    assert said == (
        "**Keep b and c.** They put together 400 pieces and their texts with a mean reciprocal "
        "rank of 0.750 (1: always first), b alone with 0.700: c adds +0.050 (p < 0.001). a as the "
        "next one would add +0.001 (p = 0.4): nothing that these pieces can show."
    )


@pytest.mark.parametrize(
    ("gain", "p_value", "meaning"),
    [
        (-0.02, 0.001, "it makes things worse"),
        (-0.02, 0.3, "nothing that these pieces can show"),
        (0.02, 0.3, "nothing that these pieces can show"),
    ],
)
def test_one_member_may_be_enough(gain, p_value, meaning):
    choice = Choice((step("b", 0.7), step("a", 0.7 + gain, gain, p_value, worth=False)), 1)
    said = recommendation(choice, {"selfretrieval": LOOKED})
    assert said.startswith("**b alone is enough here.** It puts together 400 pieces")
    assert "rank of 0.700 (1: always first)." in said
    assert said.endswith(f"({p_words(p_value)}): {meaning}.")


def test_nothing_is_said_of_a_next_one_where_all_are_kept():
    said = recommendation(Choice((step("b", 0.7),), 1), {"selfretrieval": LOOKED})
    assert "next" not in said


def test_agreement_of_the_audits_is_said():
    overlap = report("overlap", "overlap@10", a=0.1, b=0.3, c=0.2, said=("shares.", "lead."))
    said = findings(audited(LOOKED, overlap))
    assert said[:2] == ["first. second.", "shares."]
    assert said[2] == (
        "All audits that rank put b first (self-retrieval and neighbour overlap): on this corpus "
        "expect the best retrieval from it."
    )


def test_disagreement_is_said_and_settled_by_what_is_nearest_to_search():
    overlap = report("overlap", "overlap@10", a=0.4, b=0.3, c=0.2)
    lower = report("ica", "gap", a=1.0, b=3.0, c=2.0, higher=False)
    (said,) = (s for s in findings(audited(LOOKED, overlap, lower)) if "differ" in s)
    assert "a comes first by neighbour overlap and ICA; b comes first by self-retrieval" in said
    assert said.endswith("on this corpus expect the best retrieval from b.")
    tied = report("selfretrieval", "cloze_mrr", a=0.69, b=0.7, details={"leaders": ["b", "a"]})
    (said,) = (s for s in findings(audited(tied, overlap)) if "differ" in s)
    assert said.endswith("nearest to search, and cannot tell b and a apart.")
    (said,) = (
        s for s in findings(audited(overlap, report("flip", "acc", a=1, b=2))) if "differ" in s
    )
    assert said.endswith("They ask different questions.")


def test_collapse_is_named():
    ill = {"diagnosis": {"a": [{"kind": "token"}, {"kind": "dimensional"}], "b": []}}
    said = findings(audited(report("geometry", a=1.0, b=1.0, details=ill)))
    assert said[0].startswith("Collapsed vectors: a (token and dimensional);")
    well = {"diagnosis": {"a": [], "b": []}}
    assert findings(audited(report("geometry", a=1.0, details=well))) == [
        "No member's vectors have collapsed."
    ]


@pytest.mark.parametrize("holds", [True, False])
def test_an_order_that_turns_with_the_number_of_texts_is_not_to_be_relied_on(holds):
    details = {"order_holds": holds}
    said = findings(audited(report("flare", "flare", a=0.3, b=0.4, details=details)))
    warning = " With half of the texts the order is another: do not rely on it."
    assert said == ["first." + warning * (not holds)]


def test_members_go_by_the_first_audit_that_ranks():
    assert ranked(audited(LOOKED)) == ["b", "c", "a"]
    part = report("overlap", "overlap@10", a=0.1, b=0.3)
    assert ranked(audited(part)) == ["b", "a", "c"]
    assert ranked(audited(report("agreement", a=1.0))) == ["a", "b", "c"]


def test_words_for_numbers():
    assert listed(["a"]) == "a" and listed(["a", "b", "c"]) == "a, b and c"
    assert signed(-0.0304) == "−0.030" and signed(0.1) == "+0.100"
    assert [p_words(p) for p in (0.0004, 0.0123, 1.0)] == ["p < 0.001", "p = 0.012", "p = 1"]
