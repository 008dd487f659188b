//! Defines an enum together with its form on the wire.

/// Defines an enum whose variants and fields are [`Wire`](super::Wire), and functions that encode and decode its form:
/// variants are numbered by their order, and fields have no numbers.
macro_rules! wire_form {
    ($(#[$attr:meta])* pub enum $name:ident {
        $(
            $(#[$doc:meta])*
            $variant:ident $(($part:ty))? $({ $($(#[$field_doc:meta])* $field:ident: $field_part:ty,)+ })?,
        )+
    }) => {
        $(#[$attr])*
        pub enum $name {
            $($(#[$doc])* $variant $(($part))? $({ $($(#[$field_doc])* $field: $field_part,)+ })?,)+
        }

        const _: () = {
            use $crate::worker::command::{CommandError, wire};

            #[derive(serde::Serialize, serde::Deserialize)]
            #[serde(bound(deserialize = "'de: 'a"))]
            enum VariantForm<'a> {
                $($variant $((wire::WireForm<'a, $part>))? $({ $($field: wire::WireForm<'a, $field_part>,)+ })?,)+
            }

            impl $name {
                pub(in crate::worker::command) fn write_form(&self) -> Result<Vec<u8>, CommandError> {
                    use wire::Wire as _;
                    wire::write(&match self {
                        $(Self::$variant $({ 0: wire::first!(part, $part) })? $({ $($field,)+ })? => {
                            VariantForm::$variant $({ 0: wire::first!(part, $part).form()? })? $({ $($field: $field.form()?,)+ })?
                        })+
                    })
                }

                pub(in crate::worker::command) fn read_form(what: &str, bytes: &[u8]) -> Result<Self, CommandError> {
                    let mut json = wire::Json::new();
                    Ok(match wire::read::<VariantForm<'_>>(what, bytes)? {
                        $(VariantForm::$variant $({ 0: wire::first!(part, $part) })? $({ $($field,)+ })? => {
                            Self::$variant
                                $({ 0: wire::Wire::read(wire::first!(part, $part), &mut json)? })?
                                $({ $($field: wire::Wire::read($field, &mut json)?,)+ })?
                        })+
                    })
                }
            }
        };
    };
}

/// The first of two: a name, as often as the second is repeated.
macro_rules! first {
    ($first:ident, $second:ty) => {
        $first
    };
}

pub(in crate::worker::command) use {first, wire_form};
