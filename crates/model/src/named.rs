//! Provides enums with named cases: each case is declared once, with its name, and listed in `ALL`.

/// Declares an enum whose cases have a name for files and display. Generates `name`, and `ALL` in the display order of
/// tables.
#[macro_export]
macro_rules! named {
    ($(#[$outer:meta])* $vis:vis enum $type:ident {
        $($(#[$inner:meta])* $case:ident $(= $number:literal)? => $name:literal,)*
    }) => {
        $(#[$outer])*
        $vis enum $type {
            $($(#[$inner])* $case $(= $number)?,)*
        }

        impl $type {
            /// All cases, in the display order of tables.
            pub const ALL: [$type; [$($name),*].len()] = [$($type::$case),*];

            /// Returns the name for files and display.
            pub fn name(self) -> &'static str {
                match self {
                    $($type::$case => $name,)*
                }
            }
        }
    };
}
