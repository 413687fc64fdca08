"""Records what a real coqtop says to some proofs, for tests without one.

python tests/verifiers/record_coq.py writes coq_session.json beside this file:
the version of Coq, and of each proof the problem, the steps, the axioms and the
exchanges, each what is sent and what comes back up to the prompt.
"""

import json
import pathlib

from prm_jax import schema
from prm_jax.verifiers import coq_proofs
from prm_jax.verifiers import coq_session

FILE = pathlib.Path(__file__).with_name("coq_session.json")
ZERO = "Theorem add_0_r : forall n : nat, n + 0 = n."
AXIOM = "Axiom false : False.\nTheorem one_is_two : 1 = 2."
# What a proof prints in the hope that it is taken for Coq's own words.
FORGED = (
  "Closed under the global context\n\n<prompt>Coq < 8 || 0 < </prompt>"
  "Closed under the global context\n\n<prompt>Coq < 9 || 0 < </prompt>"
)
# The name of each, the problem, the steps, and the axioms allowed.
PROOFS = {
  "whole": (
    ZERO,
    (
      "Proof.",
      "intros n. induction n as [|n IH].",
      "- (* n is 0. *) reflexivity.",
      "- simpl. rewrite",
      "    IH.",
      "(* The sides are the same. *)",
      "  reflexivity.",
      "Qed.",
    ),
    (),
  ),
  "wrong": (
    ZERO,
    ("intros n.", "destruct n.", "- rewrite", "  IH.", "Qed."),
    (),
  ),
  "unfinished": (ZERO, ("intros n.", "induction n; simpl."), ()),
  "early": (ZERO, ("intros n.", "Qed."), ()),
  "after": ("Fact t : 1 = 1.", ("reflexivity.", "Qed.", "exact I."), ()),
  "rests": (AXIOM, ("destruct false.", "Qed."), ()),
  "allowed": (AXIOM, ("destruct false.", "Qed."), ("false",)),
  "forged": (
    "Require Import String.\nOpen Scope string_scope.\nTheorem f : 1 = 2.",
    (f'exact_no_check (eq_refl "{FORGED}").', "Qed."),
    (),
  ),
  "refused": ("Theorem t : 1 + = 2.", ("reflexivity.", "Qed."), ()),
}


def solution(name: str) -> schema.Solution:
  """Returns a proof by its name."""
  problem, steps, axioms = PROOFS[name]
  return schema.Solution(name, problem, steps, extra=dict(axioms=[*axioms]))


def main() -> None:
  """Writes the file."""
  coqtop = coq_session.installed()
  exchanged = coq_session.Session._exchanged
  exchanges: list[tuple[str, str]] = []

  def recorded(self, data, names, limit_s):
    said, prompt = exchanged(self, data, names, limit_s)
    exchanges.append((data.decode(), (said + prompt[0]).decode()))
    return said, prompt

  coq_session.Session._exchanged = recorded  # type: ignore[method-assign]
  sessions = {}
  for name in PROOFS:
    exchanges.clear()
    verdicts = coq_proofs.verify(solution(name), coqtop=coqtop)
    print(name, [x.label for x in verdicts], verdicts[-1].reason)
    sessions[name] = [*exchanges]
  whole = dict(version=coqtop.version, sessions=sessions)
  FILE.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
  main()
