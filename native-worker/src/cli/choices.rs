//! Flags with a few values each, of types of the library.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use crate::{hub::OnDivergence, kernels::KernelChoice};

pub(super) fn kernels() -> impl TypedValueParser<Value = KernelChoice> {
    one_of([
        (KernelChoice::Portable, "portable", "What every machine of this kind can run: SSE2 on x86-64"),
        (KernelChoice::Avx2, "avx2", "Vectors of eight numbers"),
        (KernelChoice::Avx512, "avx512", "Vectors of sixteen numbers"),
        (KernelChoice::Auto, "auto", "The widest vectors that this machine has"),
    ])
}

pub(super) fn on_divergence() -> impl TypedValueParser<Value = OnDivergence> {
    one_of([
        (
            OnDivergence::RollBack,
            "roll-back",
            "The run goes back to before the divergent worker's first unaudited fragment",
        ),
        (OnDivergence::Continue, "continue", "It continues, and its summary says that it is tainted"),
    ])
}

/// Returns a parser of these values by their names, with their help.
fn one_of<T: Copy + Send + Sync + 'static, const N: usize>(
    values: [(T, &'static str, &'static str); N],
) -> impl TypedValueParser<Value = T> {
    let names = values.map(|(_, name, help)| PossibleValue::new(name).help(help));
    PossibleValuesParser::new(names).map(move |found| {
        let value = values.iter().find(|(_, name, _)| *name == found);
        value.expect("the parser returns possible values only").0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_kernels_are_those_that_they_are_displayed_by() {
        let parser = kernels();
        let names: Vec<String> = parser.possible_values().unwrap().map(|value| value.get_name().into()).collect();
        assert_eq!(names, KernelChoice::ALL.map(|choice| choice.to_string()));
    }
}
