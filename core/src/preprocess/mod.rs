//! Preprocessors that turn points of any space into flat rows of floats.

pub mod image;
