//! Off-policy estimators: what another policy would have earned, from logged episodes.
