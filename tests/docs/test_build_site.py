"""docs/build_site.py marks words without changing what a page says."""

import build_site


def test_words_of_code_and_tables_are_marked_and_no_others():
  page = (
    '<p class="a-b">log-odds <code>prm-jax x --help</code></p>'
    '<td style="text-align: left;">a/b <a href="x-y.html">c-d</a> e</td>'
    r"<code>$\frac{1}{2}$ a|b a.b</code>"
  )
  assert build_site.mark_words(page) == (
    '<p class="a-b">log-odds <code><span class="word">prm-jax</span> x '
    '<span class="word">--help</span></code></p>'
    '<td style="text-align: left;"><span class="word">a/b</span> '
    '<a href="x-y.html"><span class="word">c-d</span></a> e</td>'
    r'<code><span class="word">$\frac{1}{2}$</span> '
    '<span class="word">a|b</span> a.b</code>'
  )
