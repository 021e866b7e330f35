//! The command line: one file for each command.

mod arguments;
mod caller;
mod changes;
mod compile;
#[cfg(feature = "console")]
mod console;
mod doctor;
mod doors;
mod effects;
#[cfg(feature = "fleet")]
mod fleet;
mod governor;
mod journal;
mod key;
mod local_time;
mod log;
mod manual;
#[cfg(feature = "mcp")]
mod mcp;
#[cfg(feature = "otlp")]
mod otlp;
mod page;
mod policy;
mod remote;
mod run;
mod secret;
mod serve;
mod stop;

pub use arguments::Cli;
pub use log::service;

use a2g_command::{UsageError, layout, local_run, output, setup};
use a2g_types::error_chain::ErrorChain;
use arguments::Command;
use clap::CommandFactory as _;
use std::process::ExitCode;

/// Runs one command.
///
/// # Errors
/// If the command fails. The error is a message for the user.
pub fn main(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.command {
        Command::Serve(arguments) => Ok(service(|| serve::main(arguments))),
        Command::Run(arguments) => run::main(*arguments),
        #[cfg(feature = "mcp")]
        Command::Mcp(arguments) => mcp::main(arguments),
        Command::Tool(command) => {
            log::start_logging("error");
            a2g_tool::main(command)
        }
        Command::Governor(arguments) => Ok(service(|| governor::main(arguments))),
        Command::Journal { command } => journal::main(command),
        Command::Key { command } => key::main(command),
        Command::Caller { command } => caller::main(command),
        #[cfg(feature = "console")]
        Command::Console(arguments) => console::main(&arguments),
        #[cfg(feature = "fleet")]
        Command::Fleet { command } => fleet::main(command),
        Command::Stop(arguments) => stop::stop(arguments),
        Command::Resume(arguments) => stop::resume(arguments),
        Command::Effects { command } => effects::main(command),
        Command::Config { command: arguments::ConfigCommand::Check(arguments) } => serve::check(&arguments),
        Command::Secret { command } => secret::main(command),
        Command::Policy { command } => policy::main(command),
        Command::Doctor { config, json } => doctor::main(json, config),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "a2g-executor", &mut std::io::stdout());
            Ok(ExitCode::SUCCESS)
        }
        Command::Man { folder } => manual::main(&folder),
        Command::Zygote { features, changes_users } => {
            end_first_without_memory();
            a2g_isolate::run_zygote(features.into(), changes_users)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::CompileModule(arguments) => {
            end_first_without_memory();
            compile::main(&arguments)
        }
    }
}

/// Makes the kernel end this process and its children before the server if memory is short, as in a container with a
/// memory limit. Otherwise it ends the process that has the most, which may be the server.
fn end_first_without_memory() {
    // Without /proc, the kernel decides.
    let _ignored = std::fs::write("/proc/self/oom_score_adj", "1000");
}

/// Prints the error of a command, and returns its exit code: 2 for a command line, a configuration or a file that is
/// not valid, otherwise 1.
#[must_use]
pub fn fail(error: &anyhow::Error) -> ExitCode {
    output::note(format_args!("error: {}", ErrorChain(error.as_ref())));
    exit_code_of(error)
}

fn exit_code_of(error: &anyhow::Error) -> ExitCode {
    let usage = error.is::<UsageError>()
        || error.is::<a2g_config::ConfigError>()
        || error.is::<a2g_govern::local::PolicyFileError>()
        || error.is::<a2g_policy::PolicyError>()
        || error.is::<a2g_policy::ConvertError>()
        || error.is::<a2g_govern::KeyError>()
        || error.is::<a2g_govern::CallersError>()
        || error.is::<a2g_http::ServerTlsError>()
        || error
            .chain()
            .filter_map(|cause| cause.downcast_ref::<a2g_fleet::FleetError>())
            .any(a2g_fleet::FleetError::is_wrong_key);
    ExitCode::from(if usage { 2 } else { 1 })
}
