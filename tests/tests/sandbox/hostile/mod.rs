//! Hostile guests against the built executor.
//!
//! Each file is one thing that a guest may want more of than it was granted. A limit is shown from
//! both sides: just inside it a guest succeeds, just over it the guest ends as promised, with the
//! error, the report and the measurements that name the limit and who set it. Bounds on time and
//! memory of the server are generous, because the machine may be busy; they are still far below
//! what the attack would take.
//!
//! Every case starts a `bench::Bench`, and gets with it, without asking (`side`):
//! 1. `/health` answers while each call runs (2 s at the most, 100 ms with `A2G_TEST_QUIET`);
//! 2. a harmless tool beside each call succeeds;
//! 3. the governor is told once of each intent that was accepted, what the caller was told, and of no
//!    other;
//! 4. nothing outside the scope has changed: the executor's home, its catalogue, what stands beside
//!    mounts;
//! 5. shortly after it (10 s at the most, 1 s with `A2G_TEST_QUIET`) the server has the processes that
//!    wait, and no thread, descriptor or cgroup more than before, and nothing computes;
//! 6. its folder for temporary files is empty.
//!
//! | threat | shown by |
//! |---|---|
//! | G1 endless loop | `time::the_deadline_ends_every_kind_of_wait`, `time::timed_out_guests_leave_no_process_behind` |
//! | G2 long fills and copies | `time::the_deadline_ends_every_kind_of_wait` (`fills`) |
//! | G3 long sleeps and polls | `time::the_deadline_ends_every_kind_of_wait`, `stop` |
//! | G4 FIFO, device, file that blocks | `time::a_fifo_is_not_opened`, `time::a_device_is_not_opened`, `time::a_guest_blocked_in_the_kernel_times_out`, `typed::a_fifo_is_not_opened` |
//! | G5 large folders | `host::a_large_folder_is_read_within_the_deadline`, `ceilings::directory_entries_have_a_ceiling`, `ceilings::the_host_reads_directory_entries_on_demand` |
//! | G6 memory bombs | `memory`, `modules::modules_over_the_size_caps_are_refused`, `modules::a_component_with_too_many_instances_is_refused` |
//! | G7 proposals | `modules::disabled_wasm_proposals_are_refused` |
//! | G8 memory of the host | `host`, `ceilings`, `files::a_long_path_costs_the_host_as_little_as_a_short_one` |
//! | G9 floods and terminal escapes | `output` |
//! | G10 stack overflow | `ends::a_stack_overflow_ends_only_its_guest` |
//! | G11 compile bombs | `modules::compiling_a_module_takes_no_memory_of_the_server` |
//! | G12 ways out of a folder | `files`, `effects`, `typed::access_outside_the_grant_is_refused_and_reported` |
//! | G13 patterns | `patterns`, `layers::an_unenforceable_condition_runs_nothing` |
//! | G14 a root that is swapped | `names::a_folder_swapped_for_a_link_does_not_escape_the_scope` |
//! | G15 Unicode and case | `names::similar_looking_names_are_distinct` |
//! | G16 planted links | `files::a_guest_cannot_create_links`, `files::hard_linked_files_are_opened_only_if_the_operator_allows_it` |
//! | G17 full disks, sparse files | `files::a_guest_has_a_budget_of_written_bytes_and_created_files` |
//! | G18 descriptors and threads | `host::descriptors_are_limited_and_released`, `host::guests_that_hoard_descriptors_do_not_starve_the_server`, `ceilings::handles_have_a_ceiling` |
//! | G19 a hole in the engine | `isolation::a_guest_has_its_own_process_without_resources`, `layout`, and `executor/tests/confine.rs`, where the hole is played by native code |
//! | G20 residue | `residue`, `reuse`; there is no coarse clock |
//! | G21 network though it is off | `network::without_a_network_calls_name_the_layer_that_disabled_it`, `network::sockets_are_linked_only_with_a_network`, `wasip2_sockets::a_connection_without_a_network_ends_the_run`, `ends::a_guest_has_no_environment_arguments_or_sockets`, `fetch::http_fetch_without_a_network_fails_with_advice` |
//! | G22 SSRF, rebinding, redirects | `network::non_public_addresses_are_not_reached_under_any_name`, `network::redirects_are_not_followed`, `network::an_endless_answer_ends_at_the_limit_with_little_memory`, `network::a_slow_server_delays_a_run_only_until_its_deadline`, `fetch::every_redirect_is_authorized_again`, `wasip2_sockets` |
//! | G23 Host against authority | `network::a_guest_cannot_override_the_host_of_a_request`, `network::tls_certificates_must_match_the_checked_host` |
//! | G24 lists of domains | `network::only_allowed_hosts_are_reached_in_any_spelling`, `network::the_standing_policy_limits_hosts_and_request_rate`, `wasip2_sockets::only_allowed_names_are_looked_up`, `requests` |
//! | G25 output as a forged report | `output::a_forged_report_is_only_a_result`, `output::terminal_escapes_are_printed_in_escaped_form`, `ends::only_one_json_value_is_a_result` |
//!
//! `programs` makes the attempts of G1, G3, G6, G8 to G12, G14, G16 to G18, G21 and G25 in both Pythons, JavaScript and
//! the shell.

mod bench;
mod ceilings;
mod cpu;
mod disk;
mod effects;
mod ends;
mod fetch;
mod files;
mod host;
mod isolation;
mod layers;
mod layout;
mod memory;
mod modules;
mod names;
mod network;
mod output;
mod patterns;
mod peer;
mod programs;
mod requests;
mod residue;
mod results;
mod reuse;
mod schemas;
mod secrets;
mod side;
mod stop;
mod time;
mod typed;
mod users;
mod wasip2_sockets;
