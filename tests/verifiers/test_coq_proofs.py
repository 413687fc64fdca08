import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import record_coq

import prm_jax
from prm_jax import errors
from prm_jax import schema
from prm_jax.labelling import label_verify
from prm_jax.testbed import small_proofs
from prm_jax.verifiers import coq_proofs
from prm_jax.verifiers import coq_sentences
from prm_jax.verifiers import coq_session
from prm_jax.verifiers import sandbox
from prm_jax.verifiers import verdicts

needs_sandbox = pytest.mark.skipif(
  sandbox.why_none() is not None, reason="the kernel allows no sandbox"
)

# Says what was recorded to what was recorded, and nothing to anything else.
FAKE = """#!{python}
import json, os, sys
with open({recorded!r}, encoding="utf-8") as f:
  recorded = json.load(f)
if sys.argv[1] == "-print-version":
  print(recorded["version"])
elif sys.argv[1] == "-config":
  print("COQLIB=" + {recorded!r})
else:
  sessions, sent = list(recorded["sessions"].values()), ""
  os.write(1, sessions[0].pop(0)[1].encode())
  sessions = [sessions[0], *(x[1:] for x in sessions[1:])]
  while more := os.read(0, 1 << 16).decode():
    sent += more
    for session in sessions:
      if session and session[0][0] == sent:
        reply, sent = session[0][1], ""
        sessions = [x[1:] for x in sessions if x and x[0] == session[0]]
        os.write(1, reply.encode())
        break
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
  """Has a program coqtop on the PATH that says what was recorded."""
  recorded = tmp_path / "lib" / "recorded.json"
  recorded.parent.mkdir()
  shutil.copy(record_coq.FILE, recorded)
  program = tmp_path / "coqtop"
  python = os.path.realpath(sys.executable)
  program.write_text(FAKE.format(python=python, recorded=str(recorded)))
  program.chmod(0o755)
  monkeypatch.setenv("PATH", str(tmp_path))
  coq_session.installed.cache_clear()
  yield recorded
  coq_session.installed.cache_clear()


def _labelled(name, **options):
  verify = label_verify.LabelVerify("coq", **options)
  (labelled,) = verify([record_coq.solution(name)])
  return labelled, labelled.extra["verified"]["reasons"]


@needs_sandbox
@pytest.mark.parametrize(
  "name, own, outcome, reasons",
  [
    (
      "whole",
      [1] * 8,
      True,
      {
        1: "accepted, 2 goals left: 0 + 0 = 0",
        2: "accepted, 1 goal left",
        5: "accepted, 1 goal left: S n = S n",
        6: "accepted, no goal left",
        7: coq_proofs.COMPLETE,
      },
    ),
    (
      "wrong",
      [1, 1, None, 0, None],
      False,
      {
        2: "its sentence ends in step 4",
        3: "The reference IH was not found in the current environment.",
        4: "not asked, after step 4",
      },
    ),
    ("unfinished", [1, 1], False, {1: "accepted, 2 goals left: 0 = 0"}),
    ("early", [1, 0], False, {1: "(in proof add_0_r): Attempt to save an"}),
    ("after", [1, 1, 0], False, {2: "it follows the end of the proof"}),
    ("rests", [1, 0], False, {1: "it rests on false"}),
    ("allowed", [1, 1], True, {1: coq_proofs.COMPLETE}),
    ("forged", [1, 0], False, {1: 'The term "eq_refl" has type'}),
    ("refused", [None, None], None, {0: "Coq refuses the problem: Syntax"}),
  ],
)
def test_labels_and_reasons_are_what_coq_said_when_it_was_recorded(
  name, own, outcome, reasons, fake
):
  labelled, found = _labelled(name)
  assert labelled.extra["verified"]["labels"] == own, found
  assert labelled.outcome is outcome
  for i, words in reasons.items():
    assert found[i].startswith(words), found
  if 0 in own:
    first = own.index(0)
    assert labelled.labels[first:] == (0,) * (len(own) - first)


@needs_sandbox
def test_a_coq_that_says_nothing_or_ends_leaves_no_label(fake):
  whole = json.loads(fake.read_text())
  whole["sessions"]["whole"][3][1] = ""
  fake.write_text(json.dumps(whole))
  labelled, reasons = _labelled("whole", time_s=0.3)
  assert labelled.labels[:1] == (1,) and set(labelled.labels[1:]) == {None}
  assert reasons[1] == "not decided within 0.3 s" and labelled.outcome is None
  fake.write_text("no JSON")
  program = str(fake.parents[1] / "coqtop")
  ended = coq_session.Coqtop(program, "8", (program, str(fake.parent)))
  solution = record_coq.solution("whole")
  found = coq_proofs.verify(solution, coqtop=ended)
  assert {x.label for x in found} == {None}
  assert found[0].reason.startswith("Coq ended: json.decoder"), found[0]


@needs_sandbox
def test_a_number_that_no_sentence_leads_to_leaves_no_label(fake):
  text = fake.read_text()
  assert " < 6 |" in text
  fake.write_text(text.replace(" < 6 |", " < 9 |"))
  labelled, reasons = _labelled("whole")
  assert None in labelled.labels and labelled.outcome is None
  assert "Coq read other sentences than were sent" in reasons


@needs_sandbox
def test_no_note_or_number_that_a_proof_prints_is_too_much(fake):
  whole = json.loads(fake.read_text())
  reply = whole["sessions"]["whole"][3]
  noise = f"{'9' * 5_000} goals\n{'<warning>' * 50_000}"
  reply[1] = f"{noise}{reply[1]}"
  fake.write_text(json.dumps(whole))
  labelled, reasons = _labelled("whole")
  assert labelled.outcome is True, reasons
  assert reasons[0] == "accepted"


def test_without_coqtop_one_line_says_how_to_install_it(monkeypatch, tmp_path):
  monkeypatch.setenv("PATH", str(tmp_path))
  coq_session.installed.cache_clear()
  with pytest.raises(errors.InputError, match="apt-get install coq") as e:
    label_verify.LabelVerify("coq")([record_coq.solution("whole")])
  assert "\n" not in str(e.value)


@pytest.mark.parametrize(
  "text, sentences",
  [
    ("intros n. simpl.\nQed.", "intros n.|simpl.|Qed."),
    ("-idtac. -- auto. ** { x. }", "-|idtac.|--|auto.|**|{|x.|}"),
    ("1: { auto. } [g]:{ x. }", "1: {|auto.|}|[g]:{|x.|}"),
    ("a (* b. (* \" *) \" c. *) *) d. e.", "a d.|e."),
    ('idtac "a. (* b". c.', 'idtac "a. (* b".|c.'),
    ('idtac "a "" b. c". d.', 'idtac "a "" b. c".|d.'),
    ("exact Nat.add. auto... f x .. y. g.", "exact Nat.add.|auto...|f x .. y.|g."),
    ("auto. (* no end. x.", "auto."),
    ("auto. intros", "auto.|intros"),
  ],
)  # fmt: skip
def test_sentences_end_as_in_coq(text, sentences):
  found = coq_sentences.split(text)
  assert "|".join(x.text for x in found) == sentences
  for x in found:
    assert text[x.start : x.end].rstrip() == x.text or "(*" in text
    assert x.is_whole == (x.text[-1] in ".{}-*")


def test_a_text_without_a_sentence_has_none():
  assert [*map(coq_sentences.split, ("", " \n", "(* a. *)"))] == [[]] * 3


@pytest.mark.parametrize(
  "sentence, label",
  [
    *[(x, "sent") for x in (
      "auto.", "Qed.", "Proof.", "Defined.", "{", "2:{", "--", "all: auto.",
      "[g]: auto.", "(auto).", "[> a | b].", "Z.to_euclidean.", "move=> x.",
      'idtac "admit".', "!: lia.", "1-2, 4: auto.", "intros admit'.",
    )],
    *[(x, 0) for x in (
      "admit.", "all: give_up.", "exact (ltac:(admit)).", "Admitted.",
      "Axiom a : False.", "Parameters a b : nat.", "Abort.", "Hypothesis h : a.",
    )],
    *[(x, None) for x in (
      'Redirect "x" Print nat.', 'Load "x".', 'Cd "/".', "1: Print nat.",
      "Declare ML Module \"x\".", "Unset Guard Checking.", "Qed .",
      "#[local] Axiom a : False.", "Theorem u : True.", "Set Bypass_API.",
      "Proof with auto.", "Proof I.", "Notation x := y.", "Drop.",
      "Local Axiom a : False.", "all: Search nat.", "Axiomes.", "Time admits.",
      'Extraction "x" f.', "[g] : Check 1.", "Save u.",
    )],
  ],
)  # fmt: skip
def test_only_tactics_and_what_ends_a_proof_are_sent(sentence, label):
  said = coq_sentences.why_not_sent(sentence)
  assert (said[0] if said else "sent") == label, said


@pytest.mark.parametrize(
  "problem, extra, reason",
  [
    ("Show that 0 = 0", {}, "is no theorem"),
    ("Theorem t : 0 = 0", {}, "is no theorem"),
    ("Definition t := 0.", {}, "is no theorem"),
    ("", {}, "is no theorem"),
    ("Theorem t : 0 = 0.", dict(axioms="classic"), "aren't a list of names"),
    ("Theorem t : 0 = 0." + " " * 10**5, {}, "longer than"),
  ],
)
def test_a_problem_that_is_no_theorem_leaves_no_label(problem, extra, reason):
  solution = schema.Solution("s", problem, ("auto.",), extra=extra)
  none = coq_session.Coqtop("/none", "none", ())
  (found,) = coq_proofs.verify(solution, coqtop=none)
  assert found.label is None and reason in found.reason


def test_a_theorem_gets_its_name_and_nothing_else_changed():
  for statement in (
    "Lemma a : b a.",
    "Theorem a(b : a) : a.",
    "Fact a {b}: c.",
  ):
    renamed, own = coq_sentences.renamed(statement, "NEW")
    assert own == "a"
    assert renamed == statement.replace(" a", " NEW", 1)
  assert coq_sentences.renamed("Lemma", "NEW") is None


def test_planted_lines_are_of_all_kinds_and_one_seed_gives_one_proof():
  solutions = [
    small_proofs.solution(f"t{i}", np.random.default_rng(i)) for i in range(60)
  ]
  again = small_proofs.solution("t3", np.random.default_rng(3))
  assert again == solutions[3]
  first = [schema.first_error(s.labels) for s in solutions]
  assert 20 < sum(x >= 0 for x in first) < 40
  assert {0, 1, 2, 3} < {*first}
  assert [s.outcome for s in solutions] == [x < 0 for x in first]


# The rest asks the real program: make coq.


@pytest.fixture
def coqtop():
  coq_session.installed.cache_clear()
  if shutil.which("coqtop") is None:
    pytest.skip("needs coqtop")
  if why := sandbox.why_none():
    pytest.skip(f"needs a sandbox: {why}")
  return coq_session.installed()


def _verify(coqtop, problem, *steps, **options):
  solution = schema.Solution("s", problem, steps)
  return coq_proofs.verify(solution, coqtop=coqtop, **options)


@pytest.mark.coq
def test_planted_errors_are_found(coqtop):
  random = np.random.default_rng(0)
  solutions = [small_proofs.solution(f"t{i}", random) for i in range(60)]
  for s in solutions:
    found = coq_proofs.verify(s, coqtop=coqtop)
    assert verdicts.labels(found) == s.labels, (s, found)
    assert coq_proofs.outcome(found) == s.outcome
  assert 20 < sum(not s.outcome for s in solutions) < 40


@pytest.mark.coq
def test_the_compiler_agrees_on_fifty_steps(coqtop, tmp_path):
  """coqc compiles the problem and the steps up to each, given up or whole."""
  random, num = np.random.default_rng(1), 0
  while num < 50:
    s = small_proofs.solution("t", random)
    found = coq_proofs.verify(s, coqtop=coqtop)
    for i, verdict in enumerate(found):
      num += 1
      text = "\n".join([s.problem, *s.steps[: i + 1]])
      if s.steps[i] != "Qed.":
        text += "\nAbort."
      path = tmp_path / f"p{num}.v"
      path.write_text(text)
      done = subprocess.run(["coqc", path], capture_output=True, text=True)
      assert (done.returncode == 0) == (verdict.label == 1), (text, found)
      if verdict.label != 1:
        break


@pytest.mark.coq
def test_what_was_recorded_is_what_coq_says(coqtop):
  recorded = json.loads(record_coq.FILE.read_text())
  if coqtop.version != recorded["version"]:
    pytest.skip(f"recorded with Coq {recorded['version']}")
  for name, exchanges in recorded["sessions"].items():
    said = []
    exchanged = coq_session.Session._exchanged
    with pytest.MonkeyPatch.context() as patch:

      def tell(self, data, names, limit_s, said=said, exchanged=exchanged):
        text, prompt = exchanged(self, data, names, limit_s)
        said.append([data.decode(), (text + prompt[0]).decode()])
        return text, prompt

      patch.setattr(coq_session.Session, "_exchanged", tell)
      coq_proofs.verify(record_coq.solution(name), coqtop=coqtop)
    # Notes have line breaks that differ from run to run.
    assert [[re.sub(r"\s", "", y) for y in x] for x in said] == [
      [re.sub(r"\s", "", y) for y in x] for x in exchanges
    ]


# An axiom of several lines, and a variable that has a heading's name.
SECTION = (
  "Axiom g : forall n : nat, n + n + n + n + n + n + n + n + n + n + n + n + n"
  " + n + n + n + n + n + n + n + n + n + n + n + n + n + n = 0 -> False.\n"
  "Section A.\nVariable Axioms : 2 = 2.\nHypothesis h : 1 = 2."
)


@pytest.mark.coq
@pytest.mark.parametrize(
  "problem, steps, labels, reason",
  [
    ("Theorem t : forall n, n = 2.", ("fix H 1. intros n. exact (H n).",
     "Qed."), [1, 0], "Recursive definition of H is ill-formed"),
    ("Unset Guard Checking.\nTheorem t : forall n, n = 2.", (
      "fix H 1. intros n. exact (H n).", "Qed."), [1, 0],
     "it rests on t is assumed to be guarded"),
    ("Ltac mine := admit.\nTheorem t : 1 = 2.", ("mine.", "Qed."), [1, 0],
     "Attempt to save a proof with given up goals"),
    ("Hypothesis h : 1 = 2.\nTheorem t : 1 = 2.", ("exact h.", "Qed."),
     [1, 0], "it rests on h"),
    (f"{SECTION}\nTheorem t : 2 = 1.", ("now rewrite h.", "Qed."), [1, 1],
     "the proof is complete"),
    (f"{SECTION}\nTheorem t : 2 = 1 /\\ 0 = 1.",
     ("split; [now rewrite h|]. destruct (g 0). reflexivity.", "Qed."), [1, 0],
     "it rests on g"),
    ("Theorem t : 1 = 2.", ("vm_cast_no_check (eq_refl 1).", "Qed."), [1, 0],
     "expected to have type"),
    ("Theorem t : exists x, x = 2.", ("eexists. shelve.", "Qed."), [1, 0],
     "unresolved existential"),
    ("Theorem t : 1 = 1.", ("reflexivity. Qed.", "(* Done. *)"), [1, 1],
     "the proof is complete"),
    ("Theorem t : 1 = 1.", ("reflexivity", "(* No end. *)"), [None, 0],
     "its last sentence has no end"),
    ("Load \"/etc/passwd\".\nTheorem t : 1 = 1.", ("auto.",), [None],
     "Can't find file"),
    ("Theorem t : 1 = 1.", ("do 1000000000 idtac.", "Qed."), [None, None],
     "not asked"),
    ("Theorem t : 1 = 1.", ("do 100000 idtac \"a long long text\".", "Qed."),
     [None, None], "not asked"),
    ("Theorem t : 1 = 1.", ("timeout 1 do 1000000000 idtac.", "Qed."),
     [None, None], "not asked"),
    ("Theorem t : 1 = 1.", (f'idtac "</infomsg>\n{"9" * 5_000} goals".',
     "do 9 idtac \"</infomsg>" + "<warning>" * 3_000 + "\".",
     "reflexivity. Qed."), [1, 1, 1], "the proof is complete"),
    ("Theorem t : 2000 * 2000 * 2000 = 1.", ("compute.",), [None], ""),
    ("Theorem t : 1 = 1.", ("par: auto.",), [None], ""),
    ("Theorem t : 1 = 1.", (f"exact {'(' * 9**5}I{')' * 9**5}.",), [None],
     "longer than"),
    ("Require Import Lia.\nTheorem t : forall n, n < 2 * n + 1.",
     ("intros. lia.", "Qed."), [1, 1], "the proof is complete"),
  ],
)  # fmt: skip
def test_nothing_but_a_proof_counts_as_one(
  problem, steps, labels, reason, coqtop
):
  found = _verify(coqtop, problem, *steps, time_s=3.0)
  assert [x.label for x in found] == labels, found
  assert reason in found[-1].reason, found


@pytest.mark.coq
def test_the_page_shows_what_it_says(coqtop):
  page = pathlib.Path(prm_jax.__file__).parents[1] / "docs" / "verifiers.md"
  blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.S)
  (block,) = (x for x in blocks if "Theorem" in x)
  exec(block, dict(prm_jax=prm_jax))
