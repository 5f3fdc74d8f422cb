//! Worlds of one purpose each.

use glint_sim::cases;

/// A test for each case, by its name.
macro_rules! test {
    ($($module:ident: $($name:ident)+;)+) => {
        $($(
            #[test]
            fn $name() {
                cases::$module::$name();
            }
        )+)+
    };
}

test! {
    attributes:
        changes_of_attributes_are_foretold
        a_change_of_owner_is_no_request;
    copies:
        data_is_copied_into_the_write_cache_and_out_of_what_was_received;
    requests:
        thousands_of_files_and_locks_come_back_in_few_requests
        what_waits_for_locks_has_a_bound_and_ends_with_its_connection
        calls_that_are_dropped_leave_nothing_open_or_locked_at_the_server
        each_read_of_a_batch_is_allowed_by_its_own_capability
        each_read_of_a_batch_is_by_its_own_row
        reads_by_old_rows_are_refused_alone_and_bring_the_new_ones;
    round_trips:
        a_small_file_of_any_server_is_read_in_one_round_trip;
    failed_disk:
        a_sync_that_fails_with_a_disk_is_answered_if_the_server_goes_on;
    random:
        hash_tables_of_a_seed_are_the_same;
}
