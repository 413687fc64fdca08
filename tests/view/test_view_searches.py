"""The pages of searches: every node is there, whatever its texts."""

import dataclasses
import itertools
import json

import hostile_json
import pytest
import searches
import view_files

from prm_jax import errors
from prm_jax import schema
from prm_jax.records import jsonl
from prm_jax.search import bill as bill_lib
from prm_jax.search import rules
from prm_jax.search import search_results
from prm_jax.search import solutions
from prm_jax.search import tree as tree_lib
from prm_jax.view import site
from prm_jax.view import view_inputs
from prm_jax.view import view_searches

COSTS = dict(policy=searches.COST, scorer=searches.COST)


def of_rule(rule):
  """Returns the results of a rule for two problems."""
  trees = searches.search(rule, searches.PROBLEMS[:2])
  return solutions.results(
    trees, COSTS, verify=lambda chosen: [len(s.steps) > 1 for s in chosen]
  )


def by_hand(
  text="step", ended=(True, False), depth=1, cost=None, num_steps=1, ahead=()
):
  """Returns a result whose nodes each have one child for each of `ended`.

  The last level ends as `ended` says; above it the last child is continued.
  """
  problem = schema.Solution(text, text, (), extra=dict(reference_answer=text))
  tree = tree_lib.begin(problem)
  at = tree.root
  for level in range(depth):
    children = []
    for i, ends in enumerate(ended):
      steps = (*at.solution.steps, *[text] * num_steps)
      children.append(
        tree_lib.Node(
          len(tree.nodes) + i,
          at.id,
          f"{at.path}.{i}".lstrip("."),
          dataclasses.replace(problem, id=f"{i}", steps=steps),
          "end" if ends and level == depth - 1 else "step",
          "policy",
          (0.25,) * len(steps),
          0.25,
          -1.0,
          ahead,
          {} if cost is None else dict(policy=cost),
        )
      )
    round_ = tree_lib.Round((tree_lib.Expansion(at.id, len(ended)),))
    tree = tree_lib.grow(tree, round_, tuple(children), {})
    at = children[-1]
  over = tree_lib.Round(candidates=tuple(n.id for n in tree.newest if n.ended))
  tree = tree_lib.grow(tree, over, (), {})
  tree = dataclasses.replace(tree, stopped="rule")
  (result,) = solutions.results(
    [tree], {}, find_answer=lambda s: s.steps[-1] if s.steps else None
  )
  return result


def shown(solution, known=None):
  """Returns what the page of a result shows."""
  result = search_results.from_solution(solution, "")
  return view_searches.content("f", result, known or {})


@pytest.mark.parametrize("name", searches.RULES)
def test_every_node_of_a_tree_is_there_once_with_its_parent_and_steps(name):
  result = of_rule(searches.RULES[name])[0]
  tree = search_results.from_solution(result, "").tree
  nodes = shown(result)["nodes"]
  assert [x["id"] for x in nodes] == [x.id for x in tree.nodes[1:]]
  steps = {0: ()}
  for node in nodes:  # a parent comes before its children
    added = tuple(text for text, *_ in node["steps"])
    steps[node["id"]] = steps[node["parent"]] + added
  assert steps == {x.id: x.solution.steps for x in tree.nodes}


@pytest.mark.parametrize("name", searches.RULES)
def test_the_path_to_the_chosen_node_alone_is_marked(name):
  result = of_rule(searches.RULES[name])[0]
  content = shown(result)
  tree = search_results.from_solution(result, "").tree
  chosen = result.extra["answers"]["best"]["node"]
  assert content["chosen"] == chosen
  path = {x["id"] for x in content["nodes"] if x["is_path"]}
  assert path == {*tree.ancestors(chosen)} - {0}
  tagged = [x["id"] for x in content["nodes"] if "chosen" in x["tags"]]
  assert tagged == [chosen]


@pytest.mark.parametrize("name", searches.RULES)
def test_a_node_that_leads_to_no_candidate_is_marked(name):
  result = of_rule(searches.RULES[name])[0]
  tree = search_results.from_solution(result, "").tree
  leading = {a for c in tree.candidates for a in tree.ancestors(c)}
  for row in shown(result)["nodes"]:
    node = tree.nodes[row["id"]]
    is_candidate = node.id in tree.candidates
    assert row["is_lost"] == (node.id not in leading)
    assert ("not continued" in row["tags"]) == (
      node.is_open and not tree.children[node.id] and not is_candidate
    )
    tagged = any(x.startswith("candidate") for x in row["tags"])
    assert tagged == is_candidate


@pytest.mark.parametrize("name", searches.RULES)
def test_siblings_that_read_the_same_stand_together_and_no_others(name):
  result = of_rule(searches.RULES[name])[0]
  nodes = {x["id"]: x for x in shown(result)["nodes"]}
  for a, b in itertools.combinations(nodes.values(), 2):
    same = [
      (x["parent"], [view_searches.normal(t) for t, *_ in x["steps"]])
      for x in (a, b)
    ]
    assert (a["like"] == b["like"]) == (same[0] == same[1])
  for node in nodes.values():
    leader = nodes[node["like"]]
    assert leader["like"] == leader["id"]
    assert leader["is_path"] or not node["is_path"]
    assert leader["is_path"] or leader["score"] >= node["score"]


@pytest.mark.parametrize(
  "texts",
  [
    ("So 4+3 = 7.", "so  4 + 3=7"),
    ("$x = 2$", "x=2"),
    ("the answer is 2", "The answer is  2 !"),
  ],
)
def test_what_reads_the_same_is_near_equal(texts):
  assert len({*map(view_searches.normal, texts)}) == 1


@pytest.mark.parametrize(
  "texts",
  ["1.5|15", "1,5|15", "1 5|15", "4 - 3|4 3", "x^2|x2", ".|,", "a b|ab"],
)
def test_what_may_mean_something_else_isnt_near_equal(texts):
  a, b = map(view_searches.normal, texts.split("|"))
  assert a != b


def test_the_first_wrong_step_of_each_branch_is_marked_where_it_is_known():
  result = by_hand(ended=(True, True), depth=3)
  rights = [True, False, False]
  known = {"step": {("step",) * (i + 1): x for i, x in enumerate(rights)}}
  nodes = shown(result, known)["nodes"]
  marked = [[right for *_, right in x["steps"]] for x in nodes]
  assert marked == [[x] for x in rights for _ in range(2)]
  assert [x["id"] for x in nodes if x["is_first_wrong"]] == [3, 4]
  assert not any(x["is_first_wrong"] for x in shown(result)["nodes"])
  own = dataclasses.replace(result, labels=(0.25, 1.0, None))
  marked = [x["id"] for x in shown(own)["nodes"] if x["is_first_wrong"]]
  assert marked == [1, 2]


def test_labels_of_other_files_say_which_steps_are_wrong(tmp_path):
  result = by_hand(ended=(True, True), depth=2)
  jsonl.write_solutions(tmp_path / "found.jsonl", [result])
  labelled = schema.Solution("x", "step", ("step", "step"), labels=(1.0, 0.0))
  jsonl.write_solutions(tmp_path / "labelled.jsonl", [labelled])
  inputs = view_inputs.read([tmp_path])
  _, items = view_files.window(site.pages(inputs))
  (search,) = items["searches"]
  assert [x["is_first_wrong"] for x in search["nodes"]] == [False] * 2 + [
    True
  ] * 2


def test_a_node_says_its_text_score_round_writer_tokens_and_why_it_stopped():
  spent = bill_lib.Spent(calls=1, sampled=3, read=1_005, read_once=4)
  nodes = shown(by_hand("x", depth=2, cost=spent, ahead=("later",)))["nodes"]
  node = nodes[2]
  assert (node["steps"], node["score"]) == ([("x", 0.25, None)], 0.25)
  text = " · ".join(node["facts"])
  assert "node 3, path 1.0 · step 2 · round 2 · written by policy" in text
  assert "the policy ended the solution · log-odds -1.00" in text
  assert "tokens of policy: 3 sampled, 1,005 read, 4 computed" in text
  assert node["ahead"] == ["later"]


def test_a_node_of_several_steps_shows_the_score_of_each():
  node = shown(by_hand("x", num_steps=3))["nodes"][0]
  assert node["steps"] == [("x", 0.25, None)] * 3


def test_the_bill_tells_what_a_cache_saves_and_what_isnt_known():
  result = of_rule(searches.RULES["beam"])[0]
  spent = result.extra["bill"]["models"]["scorer"]
  content = shown(result)
  (row,) = [x for x in content["bill"] if x[0] == "the PRM"]
  assert row[1:] == [
    *(f"{spent[k]:,}" for k in ("calls", "sampled", "read", "read_once")),
    f"{spent['read'] - spent['read_once']:,}",
  ]
  key = "FLOPs of all models, with caches"
  assert dict(content["facts"])[key] == f"{result.extra['bill']['flops']:.4g}"
  content = shown(by_hand(cost=bill_lib.Spent(calls=1, sampled=3)))
  assert content["bill"] == [["policy", "2", "6", *["not known"] * 3]]
  assert dict(content["facts"])[key] == "not known"


def test_the_types_that_models_computed_in_are_shown_if_they_are_known():
  trees = searches.search(searches.RULES["beam"], searches.PROBLEMS[:1])
  types = dict(policy="float32", scorer="bfloat16")
  (result,) = solutions.results(trees, COSTS, compute_dtype=types)
  facts = dict(shown(result)["facts"])
  assert facts["computed in"] == "policy float32, the PRM bfloat16"
  (unknown,) = solutions.results(trees, COSTS)
  assert unknown.extra["bill"]["compute_dtype"] == dict.fromkeys(types)
  assert "computed in" not in dict(shown(unknown)["facts"])


def test_answers_are_shown_by_each_way_to_choose_with_their_outcome():
  results = of_rule(rules.BestOfN(3))
  answers = {x[0]: x[1:] for x in shown(results[0])["answers"]}
  known = results[0].extra["answers"]["majority"]
  assert answers["Majority vote"][:3] == [known["answer"], True, known["node"]]
  assert shown(results[0])["reference"] == results[0].extra["reference_answer"]
  read = [search_results.from_solution(x, "") for x in results]
  assert view_searches.file_row("f", read)["ways"] == [
    [way, 2, 2] for way in view_searches.WAYS.values()
  ]
  row = view_searches.row("f", read[0])
  tree = read[0].tree
  assert row["nodes"] == len(tree.nodes) - 1 == 3
  assert row["tokens"] == bill_lib.sampled(tree.bill) > 0


def test_a_search_without_a_candidate_has_no_path():
  content = shown(by_hand(ended=(False, False)))
  assert not any(x["is_path"] for x in content["nodes"])
  assert content["answers"][0] == ["Best-scored", None, False, None, None]


def test_every_round_says_what_was_continued_and_what_is_new():
  result = of_rule(searches.RULES["beam"])[0]
  tree = search_results.from_solution(result, "").tree
  rounds = shown(result)["rounds"]
  assert len(rounds) == len(tree.rounds)
  new = [int(x[2].split()[0].replace(",", "")) for x in rounds]
  assert sum(new) == len(tree.nodes) - 1
  assert rounds[0][0] == "0 (× 6)"  # keep x expand


def test_a_tree_deeper_than_pythons_stack_has_a_page():
  content = shown(by_hand(ended=(True,), depth=1_200, num_steps=0))
  assert len(content["nodes"]) == 1_200
  json.dumps(content)


@pytest.mark.parametrize("text", ["</script>", "a\r\nb\0", "W" * 5_000])
def test_texts_of_a_tree_come_back_as_they_were(tmp_path, text):
  result = by_hand(text, ahead=(text,))
  jsonl.write_solutions(tmp_path / "found.jsonl", [result])
  made = site.pages(view_inputs.read([tmp_path / "found.jsonl"]))
  (search,) = view_files.window(made)[1]["searches"]
  assert (search["problem"], search["id"]) == (text, text)
  for node in search["nodes"]:
    assert node["steps"] == [[text, 0.25, None]] and node["ahead"] == [text]
  assert search["answers"][0][1] == text


# --- Files -------------------------------------------------------------------


@pytest.fixture
def written(tmp_path):
  results = of_rule(rules.Beam(2, 2))
  jsonl.write_solutions(tmp_path / "results.jsonl", results)
  return tmp_path / "results.jsonl", results


@pytest.mark.parametrize(
  "change, said",
  [
    (lambda r: r.pop("tree"), 'it has no "tree"'),
    (lambda r: r["answers"].pop("best"), r"answers\.best"),
    (lambda r: r["bill"].update(flops="1"), '"bill" isn\'t one'),
    (lambda r: r["bill"].update(compute_dtype=1), '"bill" isn\'t one'),
    (
      lambda r: r["bill"].update(compute_dtype=dict(policy=1)),
      '"bill" isn\'t one',
    ),
    (lambda r: r["tree"]["nodes"][0].update(score=2), '"score" of node 1'),
    (
      lambda r: r["tree"]["rounds"][0].update(nodes=99),
      "the rounds have other",
    ),
    (lambda r: r.update(steps=["other"]), "aren't those of the chosen"),
  ],
)
def test_a_line_that_is_no_result_is_refused_with_its_number(
  written, change, said
):
  path, results = written
  record = jsonl.record_from_solution(results[1])
  record = json.loads(json.dumps(record))
  change(record)
  lines = [jsonl.record_from_solution(results[0]), record]
  path.write_text("\n".join(map(json.dumps, lines)))
  with pytest.raises(errors.InputError, match=f"results.jsonl:2: .*{said}"):
    view_inputs.read([path])


def test_any_record_is_shown_or_refused_in_one_line():
  cost = bill_lib.Spent(1, 2, 3, 1, 4)
  record = jsonl.record_from_solution(by_hand(ended=(True,), cost=cost))
  del record["labels"], record["outcome"], record["source"]
  refused = 0
  for _, changed in hostile_json.variants(json.loads(json.dumps(record))):
    if isinstance(changed, dict):
      try:
        site.script(shown(jsonl.solution_from_record(changed, "f:1")))
      except errors.InputError as e:
        assert len(str(e).splitlines()) == 1 and len(str(e)) < 2_000
        refused += 1
  assert refused > 300
