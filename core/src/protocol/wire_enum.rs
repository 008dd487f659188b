//! Enums with fixed one-byte numbers.

/// A number that this version knows no name for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{value:#04x} is no {what} that this version knows")]
pub struct UnknownValue {
    /// The enum that was asked.
    pub what: &'static str,
    /// The number.
    pub value: u8,
}

/// Writes each number once: the enum, the list of its values and the way back from the wire.
macro_rules! wire_enum {
    ($(#[$doc:meta])* $what:literal $vis:vis $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $value:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        $vis enum $name { $($(#[$variant_doc])* $variant = $value,)+ }

        impl $name {
            /// Every value, in order of its number.
            #[allow(dead_code)] // Not all enums are listed somewhere.
            $vis const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The number on the wire.
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
