//! Enums with fixed one-byte numbers on the wire.

/// A number that this version has no variant for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{value:#04x} is no {what} that this version knows")]
pub struct UnknownValue {
    /// Name of the enum.
    pub what: &'static str,
    /// The number.
    pub value: u8,
}

/// Defines an enum with the list of its values and its conversions to and from the wire, so that each number is written
/// once.
macro_rules! wire_enum {
    ($(#[$doc:meta])* $what:literal $vis:vis $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $value:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        $vis enum $name { $($(#[$variant_doc])* $variant = $value,)+ }

        impl $name {
            /// All values, in order of their numbers.
            #[allow(dead_code)] // Not all enums are listed somewhere.
            $vis const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// Returns the number on the wire.
            #[must_use]
            $vis const fn to_wire(self) -> u8 {
                self as u8
            }
        }

        impl TryFrom<u8> for $name {
            type Error = $crate::protocol::UnknownValue;

            fn try_from(value: u8) -> Result<Self, Self::Error> {
                match value {
                    $($value => Ok(Self::$variant),)+
                    _ => Err($crate::protocol::UnknownValue { what: $what, value }),
                }
            }
        }
    };
}

pub(super) use wire_enum;
