"""The page of a search: a tree that a person walks, whatever its texts."""

import dataclasses
import html
import json
import re

import hostile_json
from page_reader import Reader
from page_reader import row
import pytest
import searches

import prm_jax
from prm_jax import errors
from prm_jax import schema
from prm_jax.cli import main
from prm_jax.records import jsonl
from prm_jax.reports import search_page
from prm_jax.reports import search_trees
from prm_jax.search import bill as bill_lib
from prm_jax.search import rules
from prm_jax.search import search_results as search_results
from prm_jax.search import solutions
from prm_jax.search import tree as tree_lib

HOSTILE = """</details></style><script>alert("1'2")</script>&amp;<b x='"""
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


def nodes(page):
  """Returns (id, classes, whether it is open, its line's text) of each node."""
  found = re.findall(
    r'<details id="(\w+)" class="([^"]*)"[^>]*?( open)?><summary>(.*?)</summary>',
    page,
    re.DOTALL,
  )
  return [
    (
      id_,
      css.split(),
      bool(opened),
      html.unescape(re.sub("<[^>]*>", " ", line)),
    )
    for id_, css, opened, line in found
  ]


@pytest.mark.parametrize("name", searches.RULES)
def test_every_node_of_a_tree_is_there_once_below_its_parent(name):
  (result, _) = results = of_rule(searches.RULES[name])
  page = search_trees.render(results, most=1)
  tree = search_results.from_solution(result, "").tree
  assert {id_ for id_, *_ in nodes(page)} == {
    f"p0n{node.id}" for node in tree.nodes[1:]
  }
  assert len(nodes(page)) == len(tree.nodes) - 1
  stack, parents = [0], {}
  for tag in re.findall(r'<details id="p0n\d+"|</details>', page):
    if tag == "</details>":
      stack.pop()
    else:
      stack.append(int(re.findall(r"n(\d+)", tag)[0]))
      parents[stack[-1]] = stack[-2]
  assert parents == {node.id: node.parent for node in tree.nodes[1:]}


@pytest.mark.parametrize("name", searches.RULES)
def test_the_path_to_the_chosen_node_alone_is_open_and_marked(name):
  (result, _) = results = of_rule(searches.RULES[name])
  rows = nodes(search_trees.render(results, most=1))
  tree = search_results.from_solution(result, "").tree
  chosen = result.extra["answers"]["best"]["node"]
  path = {f"p0n{n}" for n in tree.ancestors(chosen)}
  assert path == {id_ for id_, _, opened, _ in rows if opened}
  assert path == {id_ for id_, css, _, _ in rows if "path" in css}
  assert [id_ for id_, *_, line in rows if " chosen" in line] == [
    f"p0n{chosen}"
  ]


@pytest.mark.parametrize("name", searches.RULES)
def test_a_node_that_leads_to_no_candidate_is_marked(name):
  (result, _) = results = of_rule(searches.RULES[name])
  rows = nodes(search_trees.render(results, most=1))
  tree = search_results.from_solution(result, "").tree
  leading = {a for c in tree.candidates for a in tree.ancestors(c)}
  for (_, css, _, line), (id_, *_) in zip(rows, rows, strict=True):
    node = tree.nodes[int(id_.removeprefix("p0n"))]
    is_candidate = node.id in tree.candidates
    assert ("lost" in css) == (node.id not in leading)
    assert ("not continued" in line) == (
      node.is_open and not tree.children[node.id] and not is_candidate
    )
    assert (" candidate" in line.replace("no candidate", "")) == is_candidate


def test_a_node_says_its_text_score_round_writer_tokens_and_why_it_stopped():
  spent = bill_lib.Spent(calls=1, sampled=3, read=1_005, read_once=4)
  page = search_trees.render(
    [by_hand("x", depth=2, cost=spent, ahead=("later",))]
  )
  (line, *_) = [line for id_, *_, line in nodes(page) if id_ == "p0n3"]
  assert "0.250" in line and " x" in line
  text = Reader(page).text
  assert "node 3, path 1.0 · step 2 · round 2 · written by policy" in text
  assert "the policy ended the solution · log-odds -1.00" in text
  assert "tokens of policy: 3 sampled, 1,005 read, 4 computed" in text
  assert "later" in text


def test_a_node_of_several_steps_shows_the_score_of_each():
  page = search_trees.render([by_hand("x", num_steps=3)])
  assert nodes(page)[0][3].split().count("0.250") == 4
  assert nodes(page)[0][1] == ["path", "many"]


def test_the_bill_tells_what_a_cache_saves_and_what_isnt_known():
  (result, _) = results = of_rule(searches.RULES["beam"])
  models = result.extra["bill"]["models"]
  page = search_trees.render(results, most=1)
  spent = models["scorer"]
  assert row(page, "the PRM")[1:] == [
    *(f"{spent[k]:,}" for k in ("calls", "sampled", "read", "read_once")),
    f"{spent['read'] - spent['read_once']:,}",
  ]
  flops = result.extra["bill"]["flops"]
  key = "FLOPs of all models, with caches"
  assert Reader(page).facts[key] == f"{flops:.4g}"
  unread = bill_lib.Spent(calls=1, sampled=3)
  page = search_trees.render([by_hand(cost=unread)])
  assert row(page, "policy")[1:] == ["2", "6", *["not known"] * 3]
  assert Reader(page).facts[key] == "not known"


def test_the_types_that_models_computed_in_are_shown_if_they_are_known():
  trees = searches.search(searches.RULES["beam"], searches.PROBLEMS[:1])
  types = dict(policy="float32", scorer="bfloat16")
  (result,) = solutions.results(trees, COSTS, compute_dtype=types)
  shown = Reader(search_trees.render([result])).facts["computed in"]
  assert shown == "policy float32, the PRM bfloat16"
  (unknown,) = solutions.results(trees, COSTS)
  assert unknown.extra["bill"]["compute_dtype"] == dict.fromkeys(types)
  assert "computed in" not in Reader(search_trees.render([unknown])).facts


def test_answers_are_shown_by_each_way_to_choose_with_their_outcome():
  results = of_rule(rules.BestOfN(3))
  page = search_trees.render(results)
  known = results[0].extra["answers"]["majority"]
  shown = row(page, "Majority vote")
  assert shown[:3] == ["Majority vote", known["answer"], "✓ right"]
  assert shown[3] == f"node {known['node']}"
  assert f'href="#p0n{known["node"]}"' in page
  assert row(page, "Reference")[1] == results[0].extra["reference_answer"]
  assert "2 of 2" in Reader(page).text


def test_a_search_without_a_candidate_opens_nothing():
  page = search_trees.render([by_hand(ended=(False, False))])
  assert not any(opened for _, _, opened, _ in nodes(page))
  assert row(page, "Best-scored")[1:4] == ["none", "✗ wrong", "no candidate"]


def test_problems_beyond_the_most_are_in_the_table_and_said_to_have_no_tree():
  results = of_rule(rules.BestOfN(2))
  page = search_trees.render(results, most=1)
  assert "Only the first 1 of 2 problems" in page
  assert {id_[:2] for id_, *_ in nodes(page)} == {"p0"}
  assert row(page, results[1].id)
  assert "Only the first" not in search_trees.render(results, most=2)


def test_text_never_becomes_markup_and_nothing_is_loaded():
  def tags(text):
    page = search_trees.render([by_hand(text, ahead=(text,))])
    return re.findall(r"<[^>]*>", page), page

  harmless, _ = tags("harmless")
  for text in (HOSTILE, "a\r\nb\0\ud800", "W" * 5_000):
    hostile, page = tags(text)
    assert hostile == harmless
    page.encode()
  hostile, page = tags(HOSTILE)
  assert "<script" not in page
  assert not re.search(r"https?:|//|@import|url\(|<link|<img", page)
  assert html.unescape(page).count(HOSTILE) > 8


def test_a_tree_deeper_than_pythons_stack_has_a_page():
  page = search_trees.render([by_hand(ended=(True,), depth=1_200, num_steps=0)])
  assert page.count("<details id=") == page.count("</details>") == 1_200


# --- Files and the command --------------------------------------------------


def command(path, **options):
  page = path.parent / "page.html"
  search_page.SearchPage(**options).run(search_page.SearchPageJob(path, page))
  return page.read_text()


@pytest.fixture
def written(tmp_path):
  results = of_rule(rules.Beam(2, 2))
  jsonl.write_solutions(tmp_path / "results.jsonl", results)
  return tmp_path / "results.jsonl", results


def test_the_command_writes_the_page_of_the_file(written, capsys):
  path, results = written
  page = path.parent / "page.html"
  words = [f"--input={path}", f"--output={page}"]
  assert main.main(["search", "page", *words]) == 0
  assert page.read_text() == prm_jax.SearchPage()(results)
  assert command(path) == search_trees.render(results)
  out = capsys.readouterr().out
  assert out == f"{page}: the trees of 2 of 2 problems\n"
  one = command(path, problem=(results[1].id,))
  assert one == search_trees.render(results[1:])
  with pytest.raises(errors.InputError, match=r"`problem=nobody`: no such"):
    command(path, problem=("nobody",))


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
    command(path)


def test_a_file_without_results_is_refused(tmp_path):
  path = tmp_path / "results.jsonl"
  path.write_text("")
  with pytest.raises(errors.InputError, match="holds no result"):
    command(path)


def test_any_record_is_shown_or_refused_in_one_line():
  cost = bill_lib.Spent(1, 2, 3, 1, 4)
  record = jsonl.record_from_solution(by_hand(ended=(True,), cost=cost))
  del record["labels"], record["outcome"], record["source"]
  refused = 0
  for _, changed in hostile_json.variants(json.loads(json.dumps(record))):
    if isinstance(changed, dict):
      try:
        search_trees.render([jsonl.solution_from_record(changed, "f:1")])
      except errors.InputError as e:
        assert len(str(e).splitlines()) == 1 and len(str(e)) < 2_000
        refused += 1
  assert refused > 300
