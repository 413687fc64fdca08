"""The replies are made by hand from the documentation: no Lean was asked."""

import json
import sys

import pytest

from prm_jax import errors
from prm_jax import schema
from prm_jax.labelling import label_verify

PROBLEM = "theorem two_le (a : Nat) (h : 2 < a) : 2 ≤ a ∧ True := by"
POS = dict(pos=dict(line=0, column=0), endPos=dict(line=0, column=0))
SORRY = dict(POS, severity="warning", data="declaration uses `sorry`")
OPEN = dict(sorries=[dict(POS, proofState=0, goal="⊢ x")], messages=[SORRY])
REPLIES = {
  f"{PROBLEM} sorry": dict(OPEN, env=0),
  "constructor 0": dict(
    proofStatus="Incomplete: open goals remain",
    proofState=1,
    goals=["case left\na : Nat\n⊢ 2 ≤ a", "case right\n⊢ True"],
  ),
  "exact Nat.le_of_lt h 1": dict(
    proofStatus="Incomplete: open goals remain",
    proofState=2,
    goals=["case right\n⊢ True"],
  ),
  "trivial 2": dict(proofStatus="Completed", proofState=3, goals=[]),
  "exact no 1": dict(
    proofStatus="Incomplete: contains sorry",
    proofState=4,
    goals=[],
    messages=[dict(POS, severity="error", data="Unknown\n identifier `no`")],
  ),
  "sorry 1": dict(
    proofStatus="Incomplete: contains sorry",
    proofState=5,
    goals=[],
    sorries=[dict(proofState=6, goal="⊢ x")],
  ),
  "foo 0": dict(message="Lean error:\n<input>:1:0: unknown tactic"),
  "odd 0": ["no reply"],
  "odder 0": dict(messages=[3], proofState=1, goals=[]),
  "oddest 0": dict(goals=[]),
  "theorem a : b := by sorry": dict(
    OPEN, env=0, messages=[dict(POS, severity="error", data="unknown b")]
  ),
}
FAKE = """#!{python}
import json, sys
replies, asked = json.loads({replies!r}), ""
for line in sys.stdin:
  asked += line
  if not line.strip():
    x = json.loads(asked)
    key = x["cmd"] if "cmd" in x else "%(tactic)s %(proofState)d" % x
    asked = ""
    if key in replies:
      print(json.dumps(replies[key], indent=1) + "\\n", flush=True)
"""


@pytest.mark.parametrize(
  "problem, steps, own, reason",
  [
    (PROBLEM, ("constructor", "exact Nat.le_of_lt h", "trivial"), [1, 1, 1],
     "accepted, no goal left"),
    (PROBLEM, ("constructor",), [1],
     "accepted, 2 goals left: case left a : Nat ⊢ 2 ≤ a"),
    (PROBLEM, (" constructor\n", "exact no", "trivial"), [1, 0, None],
     "not asked, after step 2"),
    (PROBLEM, ("constructor", "exact no"), [1, 0], "Unknown identifier `no`"),
    (PROBLEM, ("constructor", "sorry"), [1, 0], "it gives a goal up"),
    (PROBLEM, ("foo",), [0], "Lean error: <input>:1:0: unknown tactic"),
    *[(PROBLEM, (x,), [None], "Lean's reply can't be read")
      for x in ("odd", "odder", "oddest")],
    (PROBLEM, ("slow", "rfl"), [None, None], "not asked, after step 1"),
    ("theorem a : b := by", ("rfl",), [None],
     "Lean refuses the problem: unknown b"),
    ("theorem a : b", ("rfl",), [None], "the problem doesn't end with := by"),
  ],
)  # fmt: skip
def test_replies_written_by_hand_become_labels(
  problem, steps, own, reason, tmp_path, monkeypatch
):
  program = tmp_path / "repl"
  replies = json.dumps(REPLIES)
  program.write_text(FAKE.format(python=sys.executable, replies=replies))
  program.chmod(0o755)
  monkeypatch.setenv("PATH", str(tmp_path))
  verify = label_verify.LabelVerify("lean", time_s=1.0, unsafe_code=True)
  (labelled,) = verify([schema.Solution("s", problem, steps)])
  verified = labelled.extra["verified"]
  assert verified["labels"] == own, verified
  assert verified["reasons"][-1] == reason
  assert labelled.outcome is None


@pytest.mark.parametrize(
  "unsafe, words", [(False, "has no sandbox"), (True, "needs the program repl")]
)
def test_it_runs_no_proof_unasked_and_says_what_it_needs(
  unsafe, words, tmp_path, monkeypatch
):
  monkeypatch.setenv("PATH", str(tmp_path))
  verify = label_verify.LabelVerify("lean", unsafe_code=unsafe)
  with pytest.raises(errors.InputError, match=words):
    verify([schema.Solution("s", PROBLEM, ("rfl",))])
