//! From one list of settings: the typed structs, the table, and the function that fills them.

/// One setting, as everything but its type.
#[derive(Debug)]
pub(crate) struct Setting {
    /// As in the file: `sessions.max`.
    pub key: &'static str,
    /// The table of the file; empty for those at its top.
    pub group: &'static str,
    /// Without its dashes.
    pub flag: &'static str,
    /// What stands for the value in the help; empty for a flag that needs none.
    pub placeholder: &'static str,
    /// A name of the contract in the environment.
    pub alias: Option<Alias>,
    /// A flag that stands for one of the values.
    pub shorthand: Option<Shorthand>,
    pub meaning: &'static str,
    /// How the documentation shows a default that is not the same everywhere.
    pub shown: Option<&'static str>,
}

#[derive(Debug)]
pub(crate) struct Alias {
    pub name: &'static str,
    /// Follows a bare number: `m` where the name says MB.
    pub unit: &'static str,
}

#[derive(Debug)]
pub(crate) struct Shorthand {
    pub flag: &'static str,
    pub value: &'static str,
}

/// A table of the file.
#[derive(Debug)]
pub(crate) struct Group {
    /// Empty for the top.
    pub name: &'static str,
    pub meaning: &'static str,
}

impl Setting {
    /// Our own name in the environment.
    pub(crate) fn env(&self) -> String {
        format!(
            "{}{}",
            super::OURS,
            self.key.replace('.', "_").to_uppercase()
        )
    }
}

macro_rules! settings {
    (
        $(#[doc = $top_about:literal])+
        top {$(
            $(#[doc = $top_meaning:literal])+
            $top:ident: $Top:ty = $top_default:expr, $top_flag:literal $top_value:literal
            $(, alias $top_alias:literal)?
            $(, shorthand $short:literal = $means:literal)?
            $(, shown $top_shown:literal)?
            ;
        )+}
        $(
            $(#[doc = $about:literal])+
            $group:ident: $Group:ident {$(
                $(#[doc = $meaning:literal])+
                $name:ident: $Type:ty = $default:expr, $flag:literal $value:literal
                $(, alias $alias:literal $($unit:literal)?)?
                $(, within $range:expr)?
                $(, check $check:expr => $expects:literal)?
                ;
            )+}
        )+
    ) => {
        /// Everything that `ringfence serve` can be told.
        #[derive(Debug, Clone, PartialEq)]
        pub(crate) struct Config {
            $($(#[doc = $top_meaning])+ pub $top: $Top,)+
            $($(#[doc = $about])+ pub $group: $Group,)+
            /// Keys of the settings that somebody set, in whatever way.
            set: std::collections::BTreeSet<&'static str>,
        }

        $(
            $(#[doc = $about])+
            #[derive(Debug, Clone, PartialEq)]
            pub(crate) struct $Group {
                $($(#[doc = $meaning])+ pub $name: $Type,)+
            }
        )+

        pub(crate) static GROUPS: &[Group] = &[
            Group { name: "", meaning: concat!($($top_about),+).trim_ascii() },
            $(Group { name: stringify!($group), meaning: concat!($($about),+).trim_ascii() },)+
        ];

        /// Every setting, in the order of the documentation.
        pub(crate) static SETTINGS: &[Setting] = &[
            $(Setting {
                key: stringify!($top),
                group: "",
                flag: $top_flag,
                placeholder: $top_value,
                alias: maybe!($(Alias { name: $top_alias, unit: "" })?),
                shorthand: maybe!($(Shorthand { flag: $short, value: $means })?),
                meaning: concat!($($top_meaning),+).trim_ascii(),
                shown: maybe!($($top_shown)?),
            },)+
            $($(Setting {
                key: concat!(stringify!($group), ".", stringify!($name)),
                group: stringify!($group),
                flag: $flag,
                placeholder: $value,
                alias: maybe!($(Alias { name: $alias, unit: concat!($($unit)?) })?),
                shorthand: None,
                meaning: concat!($($meaning),+).trim_ascii(),
                shown: None,
            },)+)+
        ];

        impl Config {
            /// Asks for each setting in the order of [`SETTINGS`].
            pub(super) fn fill(ask: &mut Sources<'_>) -> Result<Self, Failure> {
                Ok(Self {
                    $($top: ask.next($top_default, Rule::<$Top>::any())?,)+
                    $($group: $Group {$(
                        $name: ask.next(
                            $default,
                            Rule::<$Type>::any()
                                $(.within(&$range))?
                                $(.check($check, $expects))?,
                        )?,
                    )+},)+
                    set: ask.set(),
                })
            }
        }
    };
}

/// The one thing that may be there, or nothing.
macro_rules! maybe {
    () => {
        None
    };
    ($thing:expr) => {
        Some($thing)
    };
}

pub(super) use {maybe, settings};
