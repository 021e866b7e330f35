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
//! | G1 endless loop | `time::whatever_a_guest_waits_for_the_deadline_comes`, `time::guests_that_are_late_are_gone_and_not_only_answered_for` |
//! | G2 long fills and copies | `time::whatever_a_guest_waits_for_the_deadline_comes` (`fills`) |
//! | G3 long sleeps and polls | `time::whatever_a_guest_waits_for_the_deadline_comes`, `stop` |
//! | G4 FIFO, device, file that blocks | `time::a_fifo_is_not_opened`, `time::a_device_is_not_opened`, `time::a_guest_that_is_stuck_in_the_kernel_is_answered_all_the_same`, `typed::a_fifo_is_not_opened` |
//! | G5 large folders | `host::a_large_folder_is_read_within_the_deadline`, `ceilings::directory_entries_have_a_ceiling`, `ceilings::the_host_reads_no_more_of_a_folder_than_the_guest_takes` |
//! | G6 memory bombs | `memory`, `modules::more_than_the_caps_is_refused`, `modules::a_component_of_many_instances_is_refused` |
//! | G7 proposals | `modules::proposals_that_are_switched_off_are_refused` |
//! | G8 memory of the host | `host`, `ceilings`, `files::a_long_path_costs_the_host_no_more_than_a_short_one` |
//! | G9 floods and terminal escapes | `output` |
//! | G10 stack overflow | `ends::a_stack_overflow_ends_the_guest_and_nothing_else` |
//! | G11 compile bombs | `modules::what_a_module_costs_to_compile_the_server_does_not_pay` |
//! | G12 ways out of a folder | `files`, `typed::what_was_not_granted_is_seen_and_refused` |
//! | G13 patterns | `patterns`, `layers::a_condition_that_cannot_be_enforced_runs_nothing` |
//! | G14 a root that is swapped | `names::a_folder_that_is_swapped_for_a_link_leads_nowhere_else` |
//! | G15 Unicode and case | `names::names_that_look_alike_are_different_names` |
//! | G16 planted links | `files::no_link_can_be_planted`, `files::a_file_with_another_name_is_opened_only_where_the_operator_says_so` |
//! | G17 full disks, sparse files | `files::what_a_guest_leaves_on_the_disk_has_a_budget` |
//! | G18 descriptors and threads | `host::descriptors_are_bounded_and_come_back`, `host::guests_that_hoard_descriptors_leave_the_server_its_own`, `ceilings::handles_have_a_ceiling` |
//! | G19 a hole in the engine | `ring::a_guest_has_a_process_of_its_own_that_has_nothing`, `layout`, and `executor/tests/confine.rs`, where the hole is played by native code |
//! | G20 residue | `residue`; there is no coarse clock |
//! | G21 network though it is off | `network::without_a_network_nothing_is_linked_and_a_call_says_who_took_it_away`, `network::sockets_are_there_only_with_a_network`, `wasip2_sockets::without_a_network_a_connection_ends_the_run`, `ends::what_is_not_there_is_not_given`, `fetch::without_a_network_it_says_what_to_change_and_calls_nothing` |
//! | G22 SSRF, rebinding, redirects | `network::an_address_that_is_not_public_is_reached_under_no_name`, `network::a_redirect_is_not_followed`, `network::an_endless_answer_ends_at_the_limit_and_costs_the_server_little`, `network::a_slow_server_holds_nobody_longer_than_the_run`, `fetch::every_redirect_is_decided_about_again`, `wasip2_sockets` |
//! | G23 Host against authority | `network::a_guest_does_not_say_who_is_asked_in_another_way`, `network::tls_holds_the_server_to_the_checked_name` |
//! | G24 lists of domains | `network::only_allowed_hosts_are_reached_in_whatever_spelling`, `network::the_standing_policy_narrows_and_slows_down`, `wasip2_sockets::only_allowed_names_are_looked_up` |
//! | G25 output as a forged report | `output::a_forged_report_is_a_result_and_nothing_else`, `output::terminal_escapes_are_shown_and_not_passed_on`, `ends::only_one_json_value_is_a_result` |

mod bench;
mod ceilings;
mod cpu;
mod ends;
mod fetch;
mod files;
mod guest;
mod host;
mod layers;
mod layout;
mod memory;
mod modules;
mod names;
mod network;
mod output;
mod patterns;
mod residue;
mod results;
mod ring;
mod schemas;
mod side;
mod stop;
mod time;
mod typed;
mod users;
mod wasip2_sockets;
