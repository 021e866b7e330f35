//! The commands of `policy` and their options, as `--help` shows them.

use crate::cli::arguments::Setup;
use clap::Subcommand;
use std::path::PathBuf;

/// The number of calls that two sets of policies are compared on: a few seconds.
pub(super) const DEFAULT_CALLS: usize = 10_000;

pub(in crate::cli) const POLICY: &str = "\
A policy in Cedar says which agent may call which tool, with which arguments,
and what its run gets: folders, hosts, secrets and limits.

  // Everybody may read the workspace.
  permit (principal, action == Action::\"read_file\", resource);
  permit (principal, action == Action::\"read\",
          resource in Folder::\"/workspace\");

The files `*.cedar` of the folder `governor.policies` are one set. What no
`permit` covers is denied, and a `forbid` wins over every permit.

Example, from a first rule to one in force:

  a2g-executor policy schema > schema.cedarschema    what a rule can name
  a2g-executor policy check                          errors, with their lines
  a2g-executor policy test policies/mail.cedar       cases beside the rules
  a2g-executor config check && systemctl restart a2g-executor

These commands run no tool, and change no decision of a running server. Tools
that were never compiled are compiled once.

Exit codes: 0 done, 1 a test has failed or a difference was found, 2 wrong
usage, or a policy that is not valid";

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum PolicyCommand {
    /// Print the schema: the tools of the catalogue, their arguments, and the facts that rules can read
    ///
    /// Editors and Cedar's own tools read it. A governor without a catalogue (`a2g-executor governor`) needs it as
    /// `schema.cedarschema` in its policy folder.
    #[command(
        after_help = "Example:\n  a2g-executor policy schema --config executor.toml > policies/schema.cedarschema"
    )]
    Schema(Setup),
    /// Compile policies, and list their rules, doubtful ones, and the tools that no rule permits
    ///
    /// An error names the file and the line. A rule that can never apply is an error too.
    #[command(after_help = "\
Examples:
  a2g-executor policy check
  a2g-executor policy check policies/mail.cedar --config executor.toml")]
    Check {
        #[command(flatten)]
        setup: Setup,
        /// A folder of policies, or one file of it; default: the configured folder (`governor.policies`)
        #[arg(value_name = "FOLDER|FILE")]
        path: Option<PathBuf>,
    },
    /// Write policies in JSON as one file in Cedar that decides equally
    ///
    /// The scores of `[governor]` become rules. What Cedar cannot express exactly is an error that names it, and nothing
    /// is written. Tools that the catalogue does not have are left out, and named in a comment.
    #[command(after_help = "\
A folder has policies in one form: move the JSON files away before you use the
new one, and remove `conditions_from`, `escalate_from` and `deny_from` from
`[governor]`, which are rules then.

Examples:
  a2g-executor policy convert policies/default.json
  a2g-executor policy convert policies --to policies-cedar")]
    Convert {
        #[command(flatten)]
        setup: Setup,
        /// A policy in JSON, or a folder of them
        #[arg(value_name = "FILE|FOLDER")]
        path: PathBuf,
        /// The folder for `policies.cedar`, which must not exist yet; default: print it
        #[arg(long, value_name = "FOLDER")]
        to: Option<PathBuf>,
    },
    /// Decide on the cases beside policies, and compare with what they expect
    ///
    /// The cases of `mail.cedar` are in `mail.test.toml`. They are decided on as the built-in governor would, with the
    /// facts that they give, and nothing runs. The last table has each rule with the number of cases that it decided.
    #[command(after_help = "\
A file of cases:

  # policies = [\"default.cedar\", \"mail.cedar\"]   tests these files together

  [[case]]
  name = \"the twentieth request of an hour\"
  agent = \"did:a2g:agent:1.0:planner\"
  tool = \"http_fetch\"
  arguments = { url = \"https://api.example.com/\" }
  at = 2026-12-01T09:30:00Z        # default: Monday, 2026-01-05T12:00:00Z
  facts = { same = { hour = 19 }, read = [\"/workspace/notes\"] }
  expect = \"allow\"                 # or \"deny\", \"escalate\"
  rule = \"api\"                     # an @id, or \"mail.cedar:12\"
  hosts = [\"api.example.com\"]      # also folders, secrets, reason
  limits = { max_memory_mb = 64 }  # as the annotations are named

Facts are calls, denials, same, written_bytes (a number, or one for each of
minute, hour and day), succeeded (tools), reached (hosts) and read (folders).
A case can also have door, parent, depth, in_session, and risk: a score from 0
to 100, or { score = 75, threats = [\"private_key\"] }. What is left out is not
compared.

Examples:
  a2g-executor policy test policies/mail.cedar
  a2g-executor policy test policies")]
    Test {
        #[command(flatten)]
        setup: Setup,
        /// Files of policies or of cases, or folders of them
        #[arg(required = true, value_name = "FILE|FOLDER")]
        files: Vec<PathBuf>,
    },
    /// Decide on the calls of the journal by policies, and count the decisions that change
    ///
    /// Each call is decided on with the facts of its time: the calls before it, as they were. A call is not replayed if
    /// something of it was not kept, and counted by the reason. Arguments of calls that were denied are never kept.
    #[command(after_help = "\
TIME is `2026-11-21` (local midnight), `2026-11-21T09:30:00Z`, or a time before
now: `90m`, `12h`, `30d`. A call that waited for a person and has run was
`escalate`.

Examples:
  a2g-executor policy replay --since 30d
  a2g-executor policy replay --since 7d --policies policies-new")]
    Replay {
        #[command(flatten)]
        setup: Setup,
        /// Only calls that started at this time or later
        #[arg(long, value_name = "TIME", default_value = "1d")]
        since: String,
        /// The policies, instead of the configured folder (`governor.policies`)
        #[arg(long, value_name = "FOLDER|FILE")]
        policies: Option<PathBuf>,
        /// The journal, instead of the configuration's
        #[arg(long, value_name = "FILE")]
        journal: Option<PathBuf>,
    },
    /// Compare two sets of policies on generated calls, and show the smallest one that the new set allows more of
    ///
    /// The calls are made of the tools' schemas, of what the policies name, and of the numbers in their conditions, with
    /// those beside them. This finds differences, and proves nothing: no solver is part of this program.
    #[command(after_help = "\
More is another decision (deny, then escalate, then allow), or a file, a host,
a secret, a limit or an effect of the run that the old set does not grant. The
call is printed as a case for `policy test`.

Exit code 1 if there is such a call.

Example:
  a2g-executor policy diff policies policies-new")]
    Diff {
        #[command(flatten)]
        setup: Setup,
        /// The policies as they are
        #[arg(value_name = "OLD")]
        old: PathBuf,
        /// The policies as they could be
        #[arg(value_name = "NEW")]
        new: PathBuf,
        /// Maximum number of calls
        #[arg(long, value_name = "N", default_value_t = DEFAULT_CALLS)]
        calls: usize,
    },
    /// Print the smallest policies that permit what an agent has used
    ///
    /// They have the tools that have run, the folders, hosts and secrets of these runs, and limits as measured: memory
    /// rounded up, and ten times the longest run. What narrowed the runs stays. They are printed with their replay, and
    /// with what they would allow more than the policies in force. Nothing is written, and nothing takes effect.
    #[command(after_help = "\
TIME is `2026-11-21` (local midnight), `2026-11-21T09:30:00Z`, or a time before
now: `90m`, `12h`, `30d`. Read the rules before you use them: an agent may need
tomorrow what it has not used yet.

Exit code 1 if calls that have run would be decided otherwise.

Example:
  a2g-executor policy suggest --agent did:a2g:agent:1.0:planner --since 7d")]
    Suggest {
        #[command(flatten)]
        setup: Setup,
        /// The agent
        #[arg(long, value_name = "DID")]
        agent: String,
        /// Only runs that started at this time or later
        #[arg(long, value_name = "TIME", default_value = "1d")]
        since: String,
        /// The journal, instead of the configuration's
        #[arg(long, value_name = "FILE")]
        journal: Option<PathBuf>,
        /// Maximum number of generated calls on which it is compared with the policies in force
        #[arg(long, value_name = "N", default_value_t = DEFAULT_CALLS)]
        calls: usize,
    },
}
