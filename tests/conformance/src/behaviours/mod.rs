//! The list.

mod exec;
mod files;
mod lifecycle;
mod limits;
mod repl;
mod tools;

use crate::{Outcome, Subject};
use ringfence_core::spec::SandboxSpec;
use ringfence_core::{Control, Lifetime};
use std::future::Future;
use std::pin::Pin;

type Run = for<'a> fn(&'a Subject) -> Pin<Box<dyn Future<Output = Outcome> + Send + 'a>>;

/// One thing that every sandbox does.
pub struct Behaviour {
    pub name: &'static str,
    pub lifetime: Lifetime,
    pub spec: fn() -> SandboxSpec,
    /// What the backend must enforce for this to be tried.
    pub needs: Option<Control>,
    pub run: Run,
}

/// A behaviour of a default sandbox, by the name of its function.
macro_rules! behaviour {
    ($module:ident :: $name:ident) => {
        Behaviour {
            name: stringify!($name),
            lifetime: Lifetime::Disposable,
            spec: SandboxSpec::default,
            needs: None,
            run: |subject| Box::pin($module::$name(subject)),
        }
    };
}

pub const BEHAVIOURS: &[Behaviour] = &[
    behaviour!(exec::runs_argv_and_shell),
    behaviour!(exec::env_and_cwd),
    behaviour!(exec::standard_input),
    behaviour!(exec::streamed_input),
    behaviour!(exec::unread_input_blocks_nobody),
    behaviour!(exec::unread_output_blocks_nobody),
    behaviour!(exec::exit_codes_and_signals),
    behaviour!(exec::bytes_survive),
    behaviour!(exec::output_is_cut_and_counted),
    behaviour!(exec::events_have_offsets),
    behaviour!(exec::shell_says_where_it_ended),
    behaviour!(exec::missing_programs_are_named),
    behaviour!(exec::timeout_kills_the_whole_tree),
    behaviour!(exec::cancel_kills_the_whole_tree),
    behaviour!(exec::background_jobs),
    behaviour!(exec::terminal),
    behaviour!(exec::bad_requests),
    behaviour!(files::round_trip_and_ranges),
    behaviour!(files::manage),
    behaviour!(files::tar_in_and_out),
    behaviour!(files::glob_and_grep),
    behaviour!(files::edits_and_undo),
    behaviour!(files::paths_stay_below_their_root),
    behaviour!(files::jobs_say_what_they_changed),
    behaviour!(repl::keeps_state),
    behaviour!(repl::output_is_heard_from_children),
    behaviour!(repl::exceptions_and_exit),
    behaviour!(repl::interrupt_keeps_variables),
    behaviour!(repl::deaths_have_certificates),
    behaviour!(repl::contexts_are_apart),
    behaviour!(repl::protocol_cannot_be_printed),
    behaviour!(tools::tools_are_called_from_python),
    behaviour!(tools::tools_are_replaced),
    behaviour!(tools::tool_calls_are_cancelled_with_their_callers),
    behaviour!(tools::tool_calls_survive_the_loss_of_a_reader),
    behaviour!(lifecycle::says_how_long_it_is_idle),
    behaviour!(lifecycle::two_connections_and_two_sandboxes),
    behaviour!(lifecycle::unknown_sandboxes),
    behaviour!(lifecycle::failed_creation_leaves_nothing),
    Behaviour {
        lifetime: Lifetime::Kept,
        spec: lifecycle::labelled,
        ..behaviour!(lifecycle::is_listed_with_its_labels)
    },
    Behaviour {
        lifetime: Lifetime::Kept,
        spec: lifecycle::on_disk,
        ..behaviour!(lifecycle::suspend_keeps_files)
    },
    Behaviour {
        lifetime: Lifetime::Kept,
        spec: lifecycle::on_disk,
        ..behaviour!(lifecycle::failed_resume_keeps_files)
    },
    Behaviour {
        needs: Some(Control::Memory),
        spec: limits::little_memory,
        ..behaviour!(limits::memory)
    },
    Behaviour {
        needs: Some(Control::Pids),
        spec: limits::few_pids,
        ..behaviour!(limits::pids)
    },
    Behaviour {
        needs: Some(Control::Workspace),
        spec: limits::small_workspace,
        ..behaviour!(limits::workspace)
    },
    Behaviour {
        needs: Some(Control::Tmp),
        spec: limits::small_tmp,
        ..behaviour!(limits::tmp)
    },
];
