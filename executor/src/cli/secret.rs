//! `secret list` and `secret check`: the secrets of a configuration, without their values.

use super::arguments::SecretCommand;
use super::output::{list, one_line, print};
use super::setup::{config, open_vault};
use a2g_capability::SecretBinding;
use a2g_config::{Config, SecretSetting};
use anyhow::Context as _;
use std::process::ExitCode;

pub(super) fn main(command: SecretCommand) -> anyhow::Result<ExitCode> {
    match command {
        SecretCommand::List(setup) => {
            config(&setup)?.secrets.iter().for_each(describe);
            Ok(ExitCode::SUCCESS)
        }
        SecretCommand::Check(setup) => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.context("no runtime can be started")?.block_on(check(&config(&setup)?))
        }
    }
}

fn describe(SecretSetting { binding, source }: &SecretSetting) {
    print(format_args!("{}", binding.name()));
    print(format_args!("  source    {}", one_line(source)));
    print(format_args!("  place     {}", binding.place()));
    print(format_args!("  tools     {}", list(binding.tools())));
    print(format_args!("  agents    {}", agents(binding)));
    print(format_args!("  uses      at most {} a run", binding.max_uses()));
    for request in binding.requests() {
        print(format_args!("  request   {request}"));
    }
}

fn agents(binding: &SecretBinding) -> String {
    binding.agents().map_or_else(|| "every agent".to_owned(), list)
}

async fn check(config: &Config) -> anyhow::Result<ExitCode> {
    let mut has_failed = false;
    let Some(vault) = open_vault(config)? else {
        print("no secrets are configured (`[[secret]]`)");
        return Ok(ExitCode::SUCCESS);
    };
    for SecretSetting { binding, source } in &config.secrets {
        let name = binding.name();
        match vault.read(name).await {
            Ok(value) => print(format_args!("{name}: version {}, {}", value.version(), one_line(source))),
            Err(error) => {
                has_failed = true;
                print(format_args!("{name}: {}", one_line(error)));
            }
        }
    }
    Ok(ExitCode::from(u8::from(has_failed)))
}
