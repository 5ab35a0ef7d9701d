//! Enums whose values have names: each value, its number and its name are on one line.

/// Declares an enum whose values have names, with `ALL` and `name`. Values after a semicolon
/// are not in `ALL`.
macro_rules! named_enum {
    (
        $(#[$of_enum:meta])*
        $vis:vis enum $Enum:ident {
            $($(#[$of_value:meta])* $Value:ident $(= $number:literal)? => $name:literal,)*
            $(; $(#[cfg($cfg:meta)] $Unlisted:ident => $unlisted:literal,)+)?
        }
    ) => {
        $(#[$of_enum])*
        $vis enum $Enum {
            $($(#[$of_value])* $Value $(= $number)?,)*
            $($(#[cfg($cfg)] #[doc(hidden)] $Unlisted,)+)?
        }

        impl $Enum {
            /// Every value, in the order of declaration.
            $vis const ALL: [$Enum; [$($name),*].len()] = [$($Enum::$Value),*];

            /// Returns the name of the value in reports, in files and on command lines.
            $vis const fn name(self) -> &'static str {
                match self {
                    $($Enum::$Value => $name,)*
                    $($(#[cfg($cfg)] $Enum::$Unlisted => $unlisted,)+)?
                }
            }
        }
    };
}

pub(crate) use named_enum;
