//! Enums whose cases have names: each case is written once, with its word, and is in the list and has its name by that.

/// Declares an enum of which each case has the name by which files and the screen call it: gives `ALL`, in the order in which tables list them, and `name`.
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
            /// Every case, in the order in which tables list them.
            pub const ALL: [$type; [$($name),*].len()] = [$($type::$case),*];

            /// The name used in files and on the screen.
            pub fn name(self) -> &'static str {
                match self {
                    $($type::$case => $name,)*
                }
            }
        }
    };
}
