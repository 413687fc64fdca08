"""Coefficients of agreement of plain data, by prm_jax's functions of tables."""

import numpy as np

from prm_jax.evaluation import rater_coefficients


def alpha(values, level):
  """Returns Krippendorff's alpha of values [raters, units], NaN if missing."""
  rater, unit = np.nonzero(~np.isnan(values))
  categories, code = np.unique(values[rater, unit], return_inverse=True)
  num_units = values.shape[1]
  counts = rater_coefficients.unit_counts(
    unit, code, num_units, len(categories)
  )
  o = rater_coefficients.coincidences(counts, np.zeros(num_units, np.int64), 1)
  return float(rater_coefficients.alphas(o.reshape(1, -1), level)[0])


def kappa(confusion):
  """Returns Cohen's kappa of a table of two raters' values."""
  row = np.asarray(confusion, np.float64).reshape(1, -1)
  return float(rater_coefficients.kappas(row)[0])
