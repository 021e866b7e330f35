//! `man`: the manual pages, one for each command, from the same definitions as `--help`.

use super::arguments::Cli;
use anyhow::Context as _;
use clap::{Command, CommandFactory as _};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};
use std::io;
use std::path::Path;
use std::process::ExitCode;

pub(super) fn main(folder: &Path) -> anyhow::Result<ExitCode> {
    std::fs::create_dir_all(folder).with_context(|| format!("`{}` cannot be created", folder.display()))?;
    let mut program = Cli::command().disable_help_subcommand(true);
    // Gives each command its name with those of its parents.
    program.build();
    write_pages(&program, folder)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the page of a command, and those of the commands below it.
fn write_pages(command: &Command, folder: &Path) -> anyhow::Result<()> {
    let page = Man::new(command.clone())
        .source(concat!("a2g-executor ", env!("CARGO_PKG_VERSION")))
        .manual("A2G executor");
    let path = folder.join(page.get_filename());
    let mut text = Vec::new();
    render(&page, command, &mut text)?;
    std::fs::write(&path, text).with_context(|| format!("`{}` cannot be written", path.display()))?;
    visible(command).try_for_each(|below| write_pages(below, folder))
}

fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|below| !below.is_hide_set())
}

/// Not [`Man::render`], which joins the lines of examples to paragraphs.
fn render(page: &Man, command: &Command, text: &mut Vec<u8>) -> io::Result<()> {
    page.render_title(text)?;
    page.render_name_section(text)?;
    page.render_synopsis_section(text)?;
    page.render_description_section(text)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        page.render_options_section(text)?;
    }
    if visible(command).next().is_some() {
        page.render_subcommands_section(text)?;
    }
    let Some(help) = command.get_after_help() else { return Ok(()) };
    let mut notes = Roff::new();
    notes.control("SH", ["NOTES"]);
    notes.control("nf", []);
    for line in help.to_string().lines() {
        notes.text([roman(line)]);
    }
    notes.control("fi", []);
    notes.to_writer(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_that_help_shows_has_a_page() {
        let folder = tempfile::tempdir().unwrap();
        main(folder.path()).unwrap();
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name));
        let names = ["", "-serve", "-tool-add", "-journal-verify", "-config-check"];
        for name in names.map(|name| format!("a2g-executor{name}.1")) {
            let page = read(&name).unwrap();
            assert!(page.contains(concat!("a2g-executor ", env!("CARGO_PKG_VERSION"))), "{name}");
        }
        // The lines of an example stay lines.
        assert!(read("a2g-executor.1").unwrap().contains("\n.SH NOTES\n.nf\nExamples:\n"));
        for hidden in ["zygote", "compile-module", "help", "tool-help"] {
            assert!(read(&format!("a2g-executor-{hidden}.1")).is_err(), "{hidden}");
        }
    }
}
