//! The protections of this machine against tools, as `a2g-executor doctor` names them.

use super::page::scrolling_table;
use maud::{Markup, html};

/// The containment of this server's runs. The program determines it once, at its start.
#[derive(Debug, Clone, Default)]
pub struct Containment {
    /// The place in which tools run, as a sentence.
    pub isolation: String,
    /// The controls around each process of a run; empty if no tool runs in a process.
    pub controls: Vec<ContainmentControl>,
}

/// One control.
#[derive(Debug, Clone)]
pub struct ContainmentControl {
    /// Its name.
    pub name: &'static str,
    /// Its effect on a run.
    pub purpose: &'static str,
    /// `true` if `executor.containment = "required"` requires it.
    pub is_required: bool,
    /// The means by which this machine provides it, or the missing one.
    pub state: Result<String, String>,
}

/// The containment, folded: its first line says whether something is missing.
pub(super) fn part(containment: &Containment) -> Markup {
    let Containment { isolation, controls } = containment;
    let names = controls.iter().filter(|control| control.state.is_err()).map(|control| control.name);
    let missing = names.collect::<Vec<_>>();
    let is_weak =
        controls.is_empty() || controls.iter().any(|control| control.is_required && control.state.is_err());
    html! {
        details {
            summary {
                "Containment: " (isolation)
                @if !controls.is_empty() && missing.is_empty() { " " span.good { "All " (controls.len()) " controls are available." } }
                @if !missing.is_empty() { " " span.bad[is_weak] { "Missing: " (missing.join(", ")) "." } }
            }
            @if !controls.is_empty() {
                (scrolling_table("Containment", &html! {
                    thead { tr { th { "Control" } th { "State" } th { "For" } th { "How" } } }
                    tbody {
                        @for ContainmentControl { name, purpose, is_required, state } in controls {
                            tr {
                                th scope="row" { (name) }
                                td {
                                    @match (state, is_required) {
                                        (Ok(_), _) => span.good { "available" },
                                        (Err(_), true) => span.bad { "missing" },
                                        (Err(_), false) => "missing, optional",
                                    }
                                }
                                td { (purpose) }
                                td { @match state { Ok(how) | Err(how) => (how) } }
                            }
                        }
                    }
                }))
            }
        }
    }
}
