//! Colours of pictures.

use super::Colour;

/// Background of most pictures.
pub const PAPER: Colour = [250, 250, 247];
/// Dark colour of outlines and text.
pub const INK: Colour = [38, 42, 51];
/// Thin lines and areas in the background.
pub const LINE: Colour = [208, 211, 216];
/// Areas behind everything.
pub const SHADE: Colour = [231, 233, 236];

// Colours that are distinguishable with colour blindness (Okabe and Ito: "Color universal design", 2008); their black is
// `INK`.
/// Okabe and Ito's orange.
pub const ORANGE: Colour = [230, 159, 0];
/// Okabe and Ito's sky blue.
pub const SKY_BLUE: Colour = [86, 180, 233];
/// Okabe and Ito's bluish green.
pub const BLUISH_GREEN: Colour = [0, 158, 115];
/// Okabe and Ito's yellow.
pub const YELLOW: Colour = [240, 228, 66];
/// Okabe and Ito's blue.
pub const BLUE: Colour = [0, 114, 178];
/// Okabe and Ito's vermillion.
pub const VERMILLION: Colour = [213, 94, 0];
/// Okabe and Ito's reddish purple.
pub const REDDISH_PURPLE: Colour = [204, 121, 167];

// Colours that differ in brightness only.
/// Nearly white.
pub const WHITE: Colour = [245, 245, 245];
/// A light grey.
pub const LIGHT_GREY: Colour = [178, 178, 178];
/// A grey.
pub const GREY: Colour = [122, 122, 122];
/// A dark grey.
pub const DARK_GREY: Colour = [74, 74, 74];
