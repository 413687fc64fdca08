"""docs/serve_http.md is what the table of routes says."""

import make_serve_http

from prm_jax.serving import routes


def test_the_page_is_the_table_of_routes():
  page = make_serve_http.PAGE.read_text()
  assert page == make_serve_http.page(), "run: python docs/make_serve_http.py"
  for route in routes.ALL:
    assert f"`{route.method} {route.path}`" in page
