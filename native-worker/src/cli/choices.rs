//! Flags with a few values each, of types of the library.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use crate::{hub::OnDivergence, kernels::KernelChoice};

pub(super) fn kernels() -> impl TypedValueParser<Value = KernelChoice> {
    one_of([
        (
            KernelChoice::Portable,
            value("portable", "What every machine of this kind can run: SSE2 on x86-64").alias("sse2"),
        ),
        (KernelChoice::Avx2, value("avx2", "Vectors of eight numbers")),
        (KernelChoice::Avx512, value("avx512", "Vectors of sixteen numbers")),
        (KernelChoice::Auto, value("auto", "The widest vectors that this machine has")),
    ])
}

pub(super) fn on_divergence() -> impl TypedValueParser<Value = OnDivergence> {
    let rolls_back = "The run goes back to before the divergent worker's first unaudited fragment";
    one_of([
        (OnDivergence::RollBack, value("roll-back", rolls_back)),
        (OnDivergence::Continue, value("continue", "It continues, and its summary says that it is tainted")),
    ])
}

fn value(name: &'static str, help: &'static str) -> PossibleValue {
    PossibleValue::new(name).help(help)
}

/// Returns a parser of these values by their names.
fn one_of<T: Copy + Send + Sync + 'static, const N: usize>(
    values: [(T, PossibleValue); N],
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(values.clone().map(|(_, named)| named)).map(move |found| {
        let value = values.iter().find(|(_, named)| named.matches(&found, false));
        value.expect("the parser returns possible values only").0
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use clap::Command;

    use super::*;

    #[test]
    fn names_of_kernels_are_those_that_they_are_displayed_by() {
        let parser = kernels();
        let names: Vec<String> = parser.possible_values().unwrap().map(|value| value.get_name().into()).collect();
        assert_eq!(names, KernelChoice::ALL.map(|choice| choice.to_string()));
        let parse = |name: &str| parser.parse_ref(&Command::new("train"), None, OsStr::new(name)).unwrap();
        assert_eq!(KernelChoice::ALL.map(|choice| parse(&choice.to_string())), KernelChoice::ALL);
        assert_eq!(parse("sse2"), KernelChoice::Portable);
    }
}
