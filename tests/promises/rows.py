# long: one table
"""What users of shared accelerators suffered elsewhere, and the tests that show it does not happen here.

Rows are numbered as in two lists that were read from public issue trackers: users' pains (``U``), and features
and defects of driver-enforced fractions (``F`` and ``D``). A thread is named as the source of each. A row has
tests, or a reason why there are none. ``docs/promises.md`` is written from this by ``tools/promises_page.py``.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Row:
    """One pain. ``absent`` says what the tests do not show, or why there are none."""

    key: str
    source: str
    pain: str
    tests: tuple[str, ...] = ()
    absent: str = ""


LEVELS: Final = (
    ("node", "a real kubelet and container runtime, simulated devices"),
    ("cluster", "a real API server, most with a real kube-scheduler, simulated nodes"),
    ("process", "whole processes or programs of ours; API server, kubelet or machine are stand-ins"),
    ("hook", "real processes under the preload library, over the simulated driver: `make -C limiter test`"),
    ("device", "a real device; left out, with that reason, on a machine without one"),
    ("pure", "the decision alone"),
)
_NODE_FILES: Final = ("test_agent", "test_road", "test_promises_on_a_node", "test_real_node", "test_images")
_PURE_FILES: Final = frozenset(
    {
        "test_answer.py",
        "test_candidates.py",
        "test_cgroups.py",
        "test_health.py",
        "test_patrol.py",
        "test_verdict.py",
    }
)
_PROCESSES: Final = (
    "tests/agent/",
    "tests/cluster_view/",
    "tests/local/",
    "tests/runtime/",
    "tests/scheduler/test_pains_process",
    "tests/scheduler/test_process",
)


def level_of(test: str) -> str:
    """How far a test goes, by where it stands."""
    path = test.partition("::")[0]
    file = path.rpartition("/")[2]
    if path.startswith("limiter/"):
        return "hook"
    if path.startswith("tests/hardware/"):
        return "device"
    if path.startswith(("tests/cluster/", "tests/chart/test_install", "tests/ports/")):
        return "node" if file.startswith(_NODE_FILES) else "cluster"
    return "process" if path.startswith(_PROCESSES) and file not in _PURE_FILES else "pure"


_PLACE = "tests/promises/test_placement_pains.py::test_"
_SCHED = "tests/promises/test_scheduling_pains.py::test_"
_ADMIT = "tests/promises/test_admission_pains.py::test_"
_STATE = "tests/scheduler/test_state.py::test_"
_PAINS = "tests/scheduler/test_pains.py::test_"
_PARTS = "tests/scheduler/test_parts.py::test_"
_LIVES = "tests/scheduler/test_pains_process.py::test_"
_WORLD = "tests/scheduler/test_process.py::test_"
_REFUSE = "tests/scheduler/test_refusals.py::test_"
_CLUSTER = "tests/cluster/test_promises.py::test_"
_KUBE = "tests/cluster/test_scheduler.py::test_"
_FAULTS = "tests/cluster/test_scheduler_faults.py::test_"
_HOOK = "tests/cluster/test_webhook.py::test_"
_ROTATE = "tests/cluster/test_webhook_rotation.py::test_"
_NODE = "tests/cluster/test_promises_on_a_node.py::test_"
_REAL = "tests/cluster/test_agent.py::test_"
_ROAD = "tests/cluster/test_road.py::test_"
_CHAOS = "tests/cluster/test_chaos.py::test_programs_are_killed_under_load_and_no_device_is_ever_over_booked"
_AGENT = "tests/agent/test_pains_node.py::test_"
_GATE = "tests/agent/test_gate.py::test_"
_RESTART = "tests/agent/test_restarts.py::test_"
_ROUNDS = "tests/agent/test_rounds.py::test_"
_HEALTH = "tests/agent/test_health.py::test_"
_REVIEW = "tests/wire/kube/test_admission_containers.py::test_"
_PATCH = "tests/wire/kube/test_admission_patches.py::test_"
_SCRAPE = "tests/cluster_view/test_exposition.py::test_"
_IMAGES = "tests/cluster/test_images.py::test_"
_DEVICE = "tests/hardware/test_pains_on_a_device.py::test_"
_RUN = "tests/local/test_run.py::test_"
_HOOKS = "limiter/test/test_limiter_"
_REGION = "limiter/test/test_region_"
_CONTAINER = "limiter/test/container.sh::"

SCHEDULING: Final = (
    Row(
        "U1",
        "HAMi#1491",
        "A replaced pod lands on cards that another still holds",
        (
            f"{_PLACE}devices_of_live_exclusive_pods_stay_disjoint_through_a_thousand_replacements",
            f"{_PAINS}row_1_live_exclusive_pods_never_share_a_device",
            f"{_CLUSTER}row_1_pods_that_are_replaced_never_get_devices_that_another_still_holds",
        ),
        "1,000 rounds are decisions; through kube-scheduler there are 60",
    ),
    Row(
        "U2",
        "HAMi#2965",
        "A card behind an init container is shared minutes later",
        (
            f"{_PLACE}a_card_held_exclusively_behind_an_init_container_is_not_shared_later",
            f"{_PAINS}row_2_an_exclusive_pod_with_an_init_container_keeps_everybody_off",
            f"{_REFUSE}row_2_a_device_that_somebody_has_alone_is_named_so",
            f"{_CLUSTER}row_2_a_device_behind_an_init_container_is_not_shared_and_the_reason_is_told",
        ),
    ),
    Row(
        "U3",
        "HAMi#2622",
        "A pod of several containers counts as one slot",
        (
            f"{_PLACE}a_pod_of_three_containers_takes_three_slots",
            f"{_PAINS}row_3_a_pod_of_three_containers_takes_three_slots",
        ),
    ),
    Row(
        "U4",
        "HAMi#1741",
        "The kubelet allocates other devices than the scheduler chose",
        (
            f"{_PAINS}row_4_the_allocation_names_exactly_the_devices_that_were_chosen",
            f"{_AGENT}row_4_a_container_gets_the_devices_that_were_chosen_whatever_ids_the_kubelet_sends",
            f"{_NODE}row_4_annotation_container_tools_and_metrics_name_the_same_devices",
        ),
    ),
    Row(
        "U5",
        "volcano#3616",
        "Three pods of 12 GiB on one free card of 24 GiB",
        (
            f"{_PLACE}three_concurrent_halves_of_one_card_end_with_exactly_two_bound",
            f"{_PAINS}row_5_three_pods_on_a_device_for_two_bind_two",
        ),
    ),
    Row(
        "U6",
        "gpushare#218",
        "More is admitted than the largest card has",
        (
            f"{_PLACE}more_than_the_largest_device_has_is_refused_and_the_largest_is_named",
            f"{_PAINS}row_6_no_device_is_as_large_as_the_request",
            f"{_REFUSE}row_6_the_reason_names_the_largest_free_device",
            f"{_KUBE}a_pod_that_waits_reads_well",
        ),
    ),
    Row(
        "U7",
        "gpushare#188",
        "A pod waits although other cards have room",
        (
            f"{_PLACE}room_on_other_cards_is_found_until_every_card_is_full",
            f"{_PAINS}row_7_five_pods_fit_four_devices_of_which_each_takes_two",
        ),
    ),
    Row(
        "U8",
        "KAI#2153",
        "A burst of fractions overpacks a card, then livelocks",
        (
            f"{_KUBE}row_8_a_burst_of_quarters_fills_eight_devices_exactly",
            f"{_CLUSTER}rows_8_and_9_after_a_burst_on_a_full_node_nothing_is_tried_and_nothing_changes",
        ),
    ),
    Row(
        "U9",
        "KAI#848",
        "Endless attempts to bind to a full node",
        (f"{_CLUSTER}rows_8_and_9_after_a_burst_on_a_full_node_nothing_is_tried_and_nothing_changes",),
    ),
    Row(
        "U10",
        "KAI#1673",
        "A failed call leaves two records of one device, and capacity is lost",
        (
            f"{_LIVES}rows_10_and_15_any_one_call_that_fails_costs_no_capacity",
            "tests/scheduler/test_state_laws.py::TestHistories",
            _CHAOS,
        ),
        "there are no reservation objects here: pods are the only record",
    ),
    Row(
        "U11",
        "KAI#1454",
        "Beside a second scheduler pods end OutOfCpu",
        (
            f"{_CLUSTER}row_11_two_kinds_of_pods_that_race_for_one_node_end_bound_or_waiting",
            f"{_KUBE}whole_device_users_of_another_scheduler_are_counted",
            f"{_FAULTS}row_71_another_leader_takes_over_and_no_pod_is_placed_twice",
        ),
        "200 pods race, of two profiles of one kube-scheduler, which has one view of processors; two processes of "
        "kube-scheduler without a common lease can overbook processors, as they can in any Kubernetes",
    ),
    Row(
        "U12",
        "KAI#306",
        "What a leaving pod holds is given away at once, to several",
        (
            f"{_SCHED}row_12_what_a_leaving_pod_holds_is_free_only_once_it_is_gone",
            f"{_CLUSTER}row_12_a_pod_that_leaves_holds_its_device_until_it_is_gone",
        ),
    ),
    Row(
        "U13",
        "HAMi#1292",
        "Memory that others use is ignored",
        (
            f"{_SCHED}row_13_a_device_that_another_plugin_gave_away_is_passed_by_and_told",
            f"{_REFUSE}a_device_that_the_agent_marks_is_named_so",
            f"{_ROUNDS}a_device_that_another_plugin_gave_away_is_set_aside_until_it_is_back",
        ),
        "only devices that other plugins gave to pods are set aside; measured memory of processes outside of "
        "Kubernetes is told by the agent, and does not count in decisions yet",
    ),
    Row(
        "U14",
        "HAMi#2923",
        "A lost delete event keeps devices for ever",
        (
            f"{_STATE}lost_doubled_and_late_events_end_alike",
            "tests/scheduler/test_state_laws.py::TestHistories",
            f"{_FAULTS}row_14_a_scheduler_killed_under_load_goes_on_where_the_pods_say",
            _CHAOS,
        ),
    ),
    Row(
        "U15",
        "TF#479",
        "A failed binding leaks a device",
        (
            f"{_WORLD}row_15_a_failed_binding_leaves_free_capacity_as_a_rebuild_has_it",
            f"{_LIVES}rows_10_and_15_any_one_call_that_fails_costs_no_capacity",
        ),
    ),
    Row(
        "U16",
        "volcano#3465",
        "A percentage of memory is booked as nothing",
        (
            f"{_PLACE}a_percentage_of_memory_is_booked_as_the_memory_it_is",
            f"{_PAINS}row_16_percent_of_memory_is_booked_in_mib",
        ),
    ),
    Row(
        "U17",
        "k8s#139034",
        "Partitions that exclude each other are allocated together after a restart",
        absent="partitions (MIG) are a later part of the product",
    ),
    Row(
        "U18",
        "k8s#133705",
        "The search ends at the first device, which is full",
        (f"{_PAINS}row_18_a_full_device_does_not_end_the_search",),
        "of shares; consumable capacity of DRA is a later part of the product",
    ),
    Row(
        "U19",
        "kueue#14570",
        "Two gangs of one cycle get the same node",
        absent="gangs are a later part of the product; single pods never do (U5, U8)",
    ),
    Row(
        "U20",
        "PR koord#3173",
        "A pod takes the device that is reserved for another",
        (
            f"{_SCHED}row_20_a_pod_gets_the_device_that_was_kept_for_it_or_none",
            f"{_STATE}a_bind_to_another_node_than_was_chosen_is_refused",
            f"{_STATE}a_bind_after_the_reservation_ended_fails_where_the_place_is_taken",
        ),
    ),
    Row(
        "U21",
        "HAMi#888",
        "Leaving out memory silently means the whole card",
        (
            f"{_PATCH}row_21_leaving_out_memory_means_the_whole_device_and_says_so",
            f"{_PATCH}row_21_who_asks_for_all_of_it_is_told_nothing",
        ),
    ),
    Row(
        "U22",
        "HAMi#1006",
        "Spreading is ignored on nodes with several NUMA nodes",
        (f"{_PLACE}spread_takes_the_least_used_pair_whatever_its_numa_node",),
    ),
)

ISOLATION: Final = (
    Row(
        "U23",
        "HAMi#1221",
        "The host shows a third more than the limit, and the container nothing",
        (
            "limiter/bench/bench_refusal.c::the_host_sees_no_more_than_the_limit",
            f"{_HOOKS}hidden.c::a_context_is_charged_what_it_takes",
            f"{_HOOKS}sequences.c::every_sequence_keeps_the_books",
            f"{_ROAD}what_a_container_uses_is_what_the_host_sees",
            f"{_DEVICE}row_23_what_the_host_sees_at_a_refusal_is_the_limit",
        ),
    ),
    Row(
        "U24",
        "HAMi#1112",
        "A shell with another environment sees the whole card",
        (
            f"{_CONTAINER}an empty environment",
            f"{_CONTAINER}a login shell of root",
            f"{_CONTAINER}a login shell of nobody",
            f"{_REAL}an_environment_of_the_pods_own_lifts_no_limit",
        ),
        "sshd itself was not tried; its sessions are login shells",
    ),
    Row(
        "U25",
        "HAMi#1607",
        "A user edits the environment and gets the whole card",
        (
            f"{_CONTAINER}LD_PRELOAD taken away",
            f"{_CONTAINER}LD_PRELOAD of the driver itself",
            f"{_CONTAINER}LD_LIBRARY_PATH with a library of that name",
            f"{_CONTAINER}TESSERA_REGION does not lift the limit",
            "limiter/fuzz/fuzz_region.c::try_region",
            f"{_REAL}an_environment_of_the_pods_own_lifts_no_limit",
            f"{_REAL}a_volume_over_the_limiter_is_refused_by_the_gate_for_all_to_read",
        ),
        "a root user who unmounts what the agent mounted is seen from the host, not kept from it",
    ),
    Row(
        "U26",
        "HAMi#777",
        "The library cannot be loaded, and the pod runs without a limit",
        (
            f"{_AGENT}row_26_a_limiter_that_would_not_load_keeps_the_container_from_starting",
            f"{_NODE}row_26_a_limiter_that_was_cut_short_on_the_node_lets_nothing_start_until_it_is_whole",
            f"{_NODE}row_26_a_loader_that_knows_no_preload_file_is_noticed_within_seconds",
            f"{_REAL}a_program_that_no_limit_reaches_is_told_within_seconds",
            f"{_REAL}such_a_program_is_ended_where_that_is_the_policy",
            f"{_REAL}an_environment_of_the_pods_own_lifts_no_limit",
            f"{_IMAGES}rows_26_and_51_what_no_preload_library_reaches_is_told_in_describe",
            "tests/runtime/test_elf.py::test_a_program_for_musl_cannot",
        ),
    ),
    Row(
        "U27",
        "HAMi#1777",
        "A container in a container escapes the limit",
        ("tests/agent/test_patrol.py::test_every_other_process_is_an_escape_at_the_second_look",),
        "a process of the pod that is not in its region is told whatever container it is in; no runtime was "
        "started inside a container",
    ),
    Row(
        "U28",
        "HAMi#1093",
        "After the agent restarted pods use the whole card",
        (
            f"{_RESTART}limits_hold_after_the_agent_restarted_between_allocation_and_start",
            f"{_REAL}restarts_of_agent_kubelet_and_runtime_touch_no_running_pod",
        ),
    ),
    Row(
        "U29",
        "KAI#45",
        "Fractions exist for the scheduler alone",
        (
            f"{_RUN}a_tenant_is_refused_exactly_past_its_share_and_its_neighbour_gets_all_of_its_own",
            f"{_REAL}each_container_has_a_share_of_its_own",
            f"{_DEVICE}row_29_two_tenants_of_a_device_each_have_all_of_their_own",
        ),
    ),
    Row(
        "U30",
        "koord#2545",
        "A documented recipe does not take effect",
        (
            "tests/agent/test_agent.py::test_a_container_gets_its_share_and_nothing_else",
            f"{_ROAD}a_manifest_runs_unchanged_under_its_limits",
        ),
    ),
    Row(
        "U31",
        "Project-HAMi/k8s-dra-driver#24",
        "A claim for a part attaches the whole card",
        absent="DRA claims are a later part of the product",
    ),
    Row(
        "U32",
        "NDP#87",
        "A pod that asks for no device sees all of them",
        (f"{_REAL}a_pod_that_asks_for_nothing_gets_nothing",),
        "a simulated machine has no device nodes to hide: no library, no variable and no driver is there",
    ),
    Row(
        "U33",
        "k8s#81256",
        "A privileged pod sees all cards",
        (
            f"{_PATCH}row_33_a_privileged_container_with_a_fraction_is_refused_or_marked_by_choice",
            f"{_PATCH}row_33_what_else_lets_a_pod_past_its_share_is_told",
            f"{_NODE}row_33_a_privileged_container_with_a_fraction_is_refused_at_its_creation",
            f"{_REAL}a_privileged_container_with_a_share_still_has_its_limit",
            "tests/agent/test_verdict.py::test_devices_that_were_not_granted_are_refused",
        ),
    ),
)

LIMITER: Final = (
    Row(
        "U34",
        "NDP#467",
        "A memory limit of MPS has no effect",
        absent="MPS is not used (ADR 17): limits are held by the hook, whatever MPS does",
    ),
    Row(
        "U35",
        "HAMi-core#274",
        "A limit of one half acts as none on a large card",
        (
            f"{_HOOKS}compute.c::the_size_of_the_card_does_not_matter",
            f"{_HOOKS}compute.c::the_length_of_kernels_does_not_matter",
            f"{_HOOKS}compute.c::the_way_of_launching_does_not_matter",
            f"{_HOOKS}compute.c::a_busy_neighbour_takes_nothing_from_a_limit",
            f"{_DEVICE}rows_35_and_36_a_limit_holds_in_real_time",
        ),
        "eight cards of 20 to 200 SMs, four limits and three modes a minute each: make bench-limiter",
    ),
    Row(
        "U36",
        "HAMi-core#37",
        "Utilisation flips between nothing and nearly all",
        (
            f"{_HOOKS}compute_swing.c::seconds_of_a_limit_are_alike",
            f"{_DEVICE}rows_35_and_36_a_limit_holds_in_real_time",
        ),
        "kernels of up to 30 ms; one of a quarter of a second is two seconds of a tenth, and nobody can cut it",
    ),
    Row(
        "U37",
        "HAMi-core#104",
        "The controller looks at the first card only",
        (
            f"{_HOOKS}compute_calls.c::a_limit_holds_on_its_own_device_only",
            "tests/agent/test_ticks.py::test_a_device_that_a_region_does_not_have_is_no_part_of_another",
        ),
        "two cards were not run side by side in virtual time",
    ),
    Row(
        "U38",
        "HAMi#737",
        "A tenant that is alone has no limit, and nobody is told",
        (
            f"{_HOOKS}compute_live.c::a_hard_limit_borrows_nothing",
            f"{_HOOKS}compute_live.c::idle_time_is_lent_and_the_floor_is_back_in_half_a_second",
            "tests/agent/test_ticks.py::test_throttling_and_device_time_are_shown_as_nothing_before_the_first_launch",
        ),
    ),
    Row(
        "U39",
        "HAMi-core#142",
        "Tensor parallelism under a limit never makes progress",
        (
            f"{_REGION}compute.c::an_all_reduce_under_40_percent_takes_no_more_than_four_times_as_long",
            f"{_HOOKS}compute_calls.c::no_launch_waits_beyond_its_bound",
        ),
        "a model of two ranks; NCCL takes two devices",
    ),
    Row(
        "U40",
        "HAMi#1181",
        "Limit less use wraps around: 17 TB in use",
        (
            f"{_HOOKS}memory.c::any_order_of_allocations_and_frees_keeps_the_books",
            f"{_HOOKS}query.c::figures_never_wrap_below_a_lowered_limit",
            f"{_HOOKS}sequences.c::every_sequence_keeps_the_books",
            f"{_RUN}free_never_wraps_and_never_exceeds_the_share",
        ),
    ),
    Row(
        "U41",
        "HAMi-core#191",
        "The second process is forgotten when the first one exits",
        (
            f"{_HOOKS}share.c::the_second_process_sees_its_memory_after_the_first_exits",
            f"{_HOOKS}share.c::a_survivor_counts_on_after_others_came_and_went",
            f"{_RUN}the_second_process_sees_what_the_third_took_after_the_first_is_gone",
        ),
    ),
    Row(
        "U42",
        "HAMi-core#187",
        "An odd location is written out of bounds",
        (
            f"{_HOOKS}vmm.c::odd_locations_get_the_drivers_answer_and_touch_nothing_else",
            f"{_HOOKS}memory.c::invalid_arguments_get_the_drivers_own_error",
            "limiter/fuzz/fuzz_calls.c::take_into_nothing",
            "limiter/fuzz/fuzz_calls.c::free_nonsense",
        ),
    ),
    Row(
        "U43",
        "HAMi-core#96",
        "Pairs of asynchronous allocations drift, pools are not counted",
        (
            f"{_HOOKS}pool.c::pairs_of_allocation_and_free_do_not_drift",
            f"{_HOOKS}pool.c::without_frees_the_chunk_that_would_pass_the_limit_is_refused",
            f"{_HOOKS}pool.c::a_small_block_of_a_destroyed_pool_costs_what_it_keeps",
            f"{_RUN}pairs_of_asynchronous_allocations_do_not_drift",
        ),
    ),
    Row(
        "U44",
        "HAMi#2630",
        "Nobody knows what happens when over-committed memory is full",
        (
            f"{_HOOKS}spill.c::a_full_device_is_counted_apart_from_the_limit",
            f"{_HOOKS}spill.c::growth_beyond_the_ceiling_is_refused_first",
            f"{_HOOKS}spill.c::what_does_not_fit_goes_to_host_memory_and_comes_back_exactly",
            f"{_HOOKS}spill.c::who_is_within_its_request_gets_the_memory_of_who_is_not",
        ),
        "how much slower spilled memory is takes a device",
    ),
    Row(
        "U45",
        "HAMi-core#86",
        "Others wait minutes for the lock of a killed process",
        (
            "limiter/bench/bench_kill.c::run_round",
            f"{_REGION}model.c::check_end",
            f"{_REGION}slots.c::test_a_reaper_that_died_half_way_is_continued",
            f"{_HOOKS}share.c::a_stopped_process_blocks_nobody_and_keeps_what_it_holds",
        ),
        "150 kills in the tests, 10,000 in make bench-limiter",
    ),
    Row(
        "U46",
        "HAMi#2641",
        "NCCL deadlocks under the interposer of a whole card",
        (f"{_HOOKS}audit.c::without_the_library_nothing_is_interposed",),
        "a process without the library has none of it; NCCL takes a device",
    ),
    Row(
        "U47",
        "HAMi#2760",
        "Queries stay intercepted where control is disabled",
        (
            f"{_HOOKS}audit.c::the_hooks_and_nothing_else_are_interposed",
            f"{_HOOKS}audit.c::without_the_library_nothing_is_interposed",
        ),
    ),
    Row(
        "U48",
        "HAMi#1834",
        "The first call spins on a newer driver",
        (
            f"{_HOOKS}resolve.c::a_driver_newer_than_the_table_is_still_limited",
            f"{_HOOKS}resolve.c::every_version_of_every_name_resolves_by_the_rule",
            f"{_HOOKS}unknown.c::unknown_functions_are_the_programs_to_use_without_a_policy",
            f"{_HOOKS}surface.c::a_list_with_a_gap_is_refused",
        ),
    ),
    Row(
        "U49",
        "HAMi#1055",
        "Frameworks crash after an update of the interposer",
        absent="needs a device and frameworks: none runs on the simulated driver",
    ),
    Row(
        "U50",
        "HAMi#609",
        "What the interposer costs is not known",
        (f"{_DEVICE}row_50_what_a_call_costs_more_is_published",),
        "on the simulated driver: make bench-limiter and bench/RESULTS.md; tests assert no times",
    ),
    Row(
        "U51",
        "HAMi#2265",
        "musl is silently unlimited, other libcs break",
        (
            f"{_IMAGES}row_51_an_image_of_any_glibc_is_limited",
            f"{_IMAGES}row_51_an_image_of_the_oldest_glibc_is_limited",
            f"{_IMAGES}row_51_a_distroless_image_of_nobody_is_limited",
            f"{_IMAGES}rows_26_and_51_what_no_preload_library_reaches_is_told_in_describe",
        ),
        "glibc 2.31 to 2.43, 2.23 and 2.27 where Ubuntu's packages are in reach; 2.17 and 2.19 could not be made",
    ),
    Row(
        "U119",
        "HAMi#1674",
        "A running share cannot be made larger or smaller",
        (
            f"{_HOOKS}memory.c::a_lowered_limit_refuses_growth_and_shows_no_negative_room",
            f"{_HOOKS}compute_live.c::a_changed_limit_is_in_force_within_half_a_second",
        ),
        "by the region; a command for it and the refusal of a shrink below use are not in this table yet",
    ),
    Row(
        "U120",
        "HAMi#2693",
        "Idle time is not lent, or does not come back",
        (
            f"{_HOOKS}compute_live.c::idle_time_is_lent_and_the_floor_is_back_in_half_a_second",
            f"{_HOOKS}compute_live.c::a_share_of_best_effort_gets_what_others_leave",
            f"{_HOOKS}compute_live.c::what_is_lent_ends_with_the_agent",
            "tests/agent/test_ticks.py::test_a_share_in_burst_mode_has_what_others_leave",
        ),
    ),
)

METRICS: Final = (
    Row(
        "U52",
        "dcgm#587",
        "Every pod of a card reports the card's own value",
        (
            f"{_ROAD}what_a_container_uses_is_what_the_host_sees",
            "tests/agent/test_ticks.py::test_the_time_of_all_processes_of_a_container_is_that_of_its_share",
        ),
        "memory is told of every container, time on the device of those that have a compute limit",
    ),
    Row(
        "U53",
        "HAMi#1864",
        "Utilisation is 0 without a hard limit",
        (
            f"{_SCRAPE}row_56_an_idle_device_is_zero_and_not_absent",
            f"{_SCRAPE}row_53_a_container_without_a_compute_limit_is_said_to_have_none_and_is_never_zero",
        ),
        "the device's utilisation is the driver's word and knows no limits; a container's without one is absent, "
        "with the reason no compute limit",
    ),
    Row(
        "U54",
        "HAMi#863",
        "Containers of one pod are not told apart",
        (f"{_SCRAPE}row_54_every_container_of_a_pod_has_its_own_series",),
    ),
    Row(
        "U55",
        "HAMi#281",
        "No series before the first call",
        (
            f"{_SCRAPE}row_55_a_share_is_there_with_zero_before_its_first_call",
            f"{_RESTART}metrics_show_every_share_from_the_first_scrape",
        ),
    ),
    Row(
        "U56",
        "HAMi#2015",
        "0 where the value is not available",
        (
            f"{_SCRAPE}rows_56_and_57_what_a_driver_does_not_say_is_absent_with_a_reason_and_spoils_no_other",
            f"{_SCRAPE}row_56_an_idle_device_is_zero_and_not_absent",
        ),
    ),
    Row(
        "U57",
        "HAMi#1089",
        "One bad device empties the scrape",
        (
            f"{_SCRAPE}row_57_one_bad_region_leaves_the_others_in_the_scrape",
            f"{_RESTART}a_region_that_cannot_be_read_hides_no_other_and_is_absent",
            "tests/agent/test_machine.py::test_a_device_that_fails_to_answer_hides_no_other",
        ),
    ),
    Row(
        "U58",
        "volcano#4930",
        "Pods a second cannot be derived",
        (f"{_SCRAPE}row_58_pods_per_second_attempts_and_latency_can_be_derived",),
    ),
)

WEBHOOK: Final = (
    Row(
        "U59",
        "HAMi#693",
        "A wrong authority lets pods fall through to the default scheduler",
        (
            f"{_HOOK}row_59_a_wrong_authority_refuses_ours_alone_and_is_put_right",
            f"{_HOOK}rows_59_and_61_pods_that_ask_for_a_share_are_refused_and_all_others_pass_while_it_is_down",
        ),
    ),
    Row(
        "U60",
        "PR HAMi#1573",
        "A rotated certificate costs a minute of failures",
        (f"{_ROTATE}row_60_certificates_and_authorities_change_under_100_pods_a_second_and_no_admission_fails",),
    ),
    Row(
        "U61",
        "HAMi#661",
        "The webhook is away and pods keep the default scheduler for ever",
        (
            f"{_ROTATE}row_61_a_replica_that_ends_hands_over_without_a_failed_admission_and_a_killed_one_is_replaced",
            f"{_HOOK}without_its_configuration_the_policy_refuses_what_was_not_admitted",
            f"{_KUBE}a_pod_that_slipped_past_admission_is_told_so",
        ),
    ),
)

NODE: Final = (
    Row(
        "U62",
        "HAMi#727",
        "A library is replaced in place under running pods",
        (
            f"{_RESTART}a_hundred_restarts_touch_neither_library_nor_region_nor_process",
            "tests/agent/test_store.py::test_another_version_lies_beside_the_first",
            f"{_REAL}restarts_of_agent_kubelet_and_runtime_touch_no_running_pod",
        ),
        "100 restarts with a process beside a stand-in of a kubelet, a few on a real node",
    ),
    Row(
        "U63",
        "HAMi#2200",
        "One transient fault takes a card out until somebody restarts the plugin",
        (
            f"{_HEALTH}a_transient_fault_is_forgotten_after_a_quiet_period",
            f"{_HEALTH}a_fatal_fault_stays_and_is_told_first",
            f"{_ROUNDS}a_transient_fault_is_over_by_itself",
            f"{_ROUNDS}a_fatal_fault_reaches_inventory_pods_and_the_next_agent",
            f"{_REAL}a_faulty_device_is_published_and_told_to_the_pods_that_use_it",
        ),
    ),
    Row(
        "U64",
        "NDP#1974",
        "The meaning of faults disagrees with the catalogue",
        (f"{_HEALTH}the_table_agrees_with_the_catalogue", f"{_HEALTH}users_may_change_the_table"),
    ),
    Row(
        "U65",
        "ascend-device-plugin#129",
        "Devices that were unhealthy at the start are never published again",
        ("tests/agent/test_plugins.py::test_a_node_that_can_hand_out_nothing_offers_nothing_until_it_can",),
    ),
    Row(
        "U66",
        "k8s#118559",
        "A restart of the kubelet ends running pods",
        (
            f"{_REAL}restarts_of_agent_kubelet_and_runtime_touch_no_running_pod",
            f"{_REAL}row_66_a_kubelet_that_restarts_without_an_agent_leaves_running_pods_alone",
        ),
        "of kubelets that of 1.37",
    ),
    Row(
        "U67",
        "nvidia-container-toolkit#48",
        "systemctl daemon-reload detaches cards from running containers",
        absent="needs systemd and device nodes; devices come by CDI, which systemd rewrites nothing of",
    ),
    Row(
        "U68",
        "HAMi#595",
        "After a reboot the split is gone, or waiting pods are not tried again",
        (
            f"{_AGENT}row_68_a_restart_of_the_machine_changes_nothing_of_its_inventory",
            f"{_HEALTH}fatal_faults_outlive_an_agent_and_not_a_restart_of_the_machine",
            f"{_KUBE}an_inventory_that_appears_is_used_within_seconds",
            "tests/cluster/test_scheduler_tickets.py::"
            "test_a_pod_that_was_there_before_any_agent_is_bound_when_one_comes",
            "tests/cluster/test_scheduler_tickets.py::"
            "test_a_pod_that_came_while_the_agent_was_away_is_bound_when_it_is_back",
            "tests/cluster/test_scheduler_growth.py::test_a_node_that_joins_wakes_a_pod_that_fits_no_other",
        ),
    ),
    Row(
        "U69",
        "NDP#519",
        "Pods that use an unhealthy device are not told",
        (
            f"{_ROUNDS}a_fatal_fault_reaches_inventory_pods_and_the_next_agent",
            f"{_REAL}a_faulty_device_is_published_and_told_to_the_pods_that_use_it",
        ),
        "told by event and inventory; eviction is a later part of the product",
    ),
)

AVAILABILITY: Final = (
    Row(
        "U70",
        "HAMi#2911",
        "What was read in an earlier term unlocks scheduling in a later one",
        (
            f"{_PARTS}row_70_a_term_that_comes_again_is_another_term",
            f"{_WORLD}row_70_pods_are_read_anew_at_the_start_of_every_term",
        ),
    ),
    Row(
        "U71",
        "HAMi#1954",
        "Scheduling stops at a failover",
        (
            f"{_LIVES}row_71_fifty_leaders_one_after_the_other_lose_no_pod_and_place_none_twice",
            f"{_FAULTS}row_71_another_leader_takes_over_and_no_pod_is_placed_twice",
            "tests/runtime/kube/test_election.py::test_never_two_leaders_whatever_wall_clocks_and_network_do",
            _CHAOS,
        ),
        "fifty failovers in memory; through real leases one a test, and some in every run of chaos",
    ),
    Row(
        "U72",
        "HAMi#1378",
        "The chart lacks rights for the election",
        (
            "tests/chart/test_install.py::test_an_account_may_do_its_work",
            "tests/chart/test_install.py::test_both_schedulers_lead_with_the_rights_of_their_account",
        ),
    ),
)

CONTAINERS: Final = (
    Row(
        "U75",
        "HAMi#1667",
        "Init containers shift which container gets which device",
        (
            f"{_PLACE}each_container_of_any_shape_of_pod_gets_its_own_devices_and_no_other_gets_any",
            f"{_REVIEW}row_75_each_container_that_asks_gets_its_share_and_no_other",
            f"{_NODE}kai_5_init_two_containers_and_a_sidecar_each_have_a_limit_of_their_own",
        ),
    ),
    Row(
        "U76",
        "HAMi#2640",
        "Two pods with a device in an init container swap their allocations",
        (
            f"{_PLACE}two_pods_with_a_device_only_in_an_init_container_each_get_their_own_limit",
            f"{_REVIEW}row_76_two_pods_with_a_device_in_an_init_container_hold_different_tickets",
            f"{_GATE}swapped_tickets_never_pass",
        ),
    ),
    Row(
        "U77",
        "HAMi#2335",
        "A device of another vendor goes to the wrong container",
        (
            f"{_PLACE}a_pod_with_two_kinds_of_device_gives_each_container_its_own_kind",
            f"{_REVIEW}row_77_a_device_of_another_vendor_stays_with_its_own_plugin",
        ),
    ),
    Row(
        "U78",
        "HAMi#698",
        "A container without a device between two with one breaks",
        (
            f"{_REVIEW}row_78_a_container_in_the_middle_that_asks_for_nothing_is_untouched",
            f"{_NODE}kai_5_init_two_containers_and_a_sidecar_each_have_a_limit_of_their_own",
        ),
    ),
    Row(
        "U79",
        "volcano#4505",
        "A pod's spec crashes the scheduler",
        (
            "tests/wire/kube/test_admission_laws.py::test_row_79_whatever_stands_in_an_object_is_answered",
            "tests/wire/kube/test_extender.py::test_no_body_breaks_a_decoder",
        ),
    ),
    Row(
        "U80",
        "NDP#1690",
        "Two containers of a pod cannot share one card",
        (
            f"{_PLACE}two_containers_of_one_pod_can_share_one_card",
            f"{_REVIEW}rows_80_and_81_two_containers_may_share_a_device_and_both_are_counted",
            f"{_NODE}kai_5_init_two_containers_and_a_sidecar_each_have_a_limit_of_their_own",
        ),
    ),
    Row(
        "U81",
        "PR TF#535",
        "Only the first container counts",
        (
            f"{_PLACE}what_is_booked_is_the_sum_over_all_containers",
            f"{_REVIEW}rows_80_and_81_two_containers_may_share_a_device_and_both_are_counted",
        ),
    ),
    Row(
        "U82",
        "PR HAMi#1773",
        "Init containers are booked wrongly against the others",
        (
            f"{_PLACE}the_peak_counts_an_init_container_with_the_sidecars_before_it_only",
            f"{_PAINS}row_82_an_init_container_and_the_app_container_take_turns_on_a_device",
            f"{_REVIEW}row_82_the_request_leaves_the_overlap_of_init_containers_to_the_pods_own_order",
        ),
    ),
)

SCALE: Final = (
    Row(
        "U83",
        "HAMi#1367",
        "Forty pods for one node take a quarter of an hour",
        (f"{_KUBE}row_83_a_hundred_pods_aimed_at_one_node_are_all_bound",),
        "bound; the figure is in bench/RESULTS.md, since tests assert no times",
    ),
    Row(
        "U84",
        "HAMi#1368",
        "The lock of a dead pod blocks its node",
        (
            f"{_SCHED}row_84_a_pod_that_is_killed_at_any_stage_blocks_nobody",
            f"{_KUBE}a_pod_deleted_and_made_again_under_its_name_is_another_pod",
        ),
        "there is no lock",
    ),
    Row(
        "U85",
        "HAMi#3096",
        "A lock that expired is handed on, and two pods swap their limits",
        (
            f"{_SCHED}row_85_a_ticket_is_not_handed_on_however_long_the_kubelet_takes",
            f"{_AGENT}row_85_a_pod_that_waited_long_for_its_devices_still_gets_its_own",
            f"{_GATE}swapped_tickets_never_pass",
            f"{_NODE}row_85_and_kai_5_nothing_starts_while_the_agent_stalls_and_then_each_has_its_own",
        ),
        "minutes and days pass on a clock of the test's; on the real node the agent hangs for seconds",
    ),
    Row(
        "U86",
        "HAMi#810",
        "Thousands of waiting pods stampede",
        (
            f"{_LIVES}row_86_five_thousand_pods_that_wait_cost_no_call_each",
            f"{_PARTS}row_86_waking_is_bounded_however_much_is_freed",
        ),
        "5,000 wait on 200 nodes in memory; steady throughput is measured by make bench-cluster",
    ),
    Row(
        "U87",
        "KAI#315",
        "Most of a cycle is spent on looking at the cluster",
        (
            f"{_SCHED}rows_87_and_90_a_decision_costs_the_same_with_ten_times_the_pods_or_nodes",
            "tests/laws/test_index_laws.py::test_the_index_answers_as_a_decision_from_nothing",
        ),
        "calls are counted, not the work on arrays within them; times are in bench/RESULTS.md",
    ),
    Row(
        "U88",
        "KAI#1725",
        "The scheduler's memory grows with time, and with pods' environments",
        (
            f"{_LIVES}row_88_what_is_remembered_stays_the_same_at_a_constant_load",
            f"{_LIVES}row_88_nothing_of_a_pods_environment_is_kept",
        ),
        "1,600 pods, not two hours",
    ),
    Row(
        "U89",
        "kueue#13148",
        "Cycles of 40 s with 700 candidates for preemption",
        absent="preemption is a later part of the product",
    ),
    Row(
        "U90",
        "volcano#2583",
        "Pods that are there already slow placement down",
        (f"{_SCHED}rows_87_and_90_a_decision_costs_the_same_with_ten_times_the_pods_or_nodes",),
        "as U87",
    ),
)

FEATURES: Final = (
    Row(
        "F-dead",
        "KAI fractions",
        "The agent is dead while containers start: they run without a limit",
        (
            f"{_AGENT}kai_5_of_a_hundred_containers_none_starts_while_the_agent_is_dead_or_stalled",
            f"{_REAL}without_an_agent_a_container_does_not_start_again_until_it_is_back",
            f"{_REAL}while_the_agent_is_killed_again_and_again_nothing_starts_unlimited",
        ),
        "a hundred gates ask at once without a runtime; on the real node there are sixteen pods",
    ),
    Row(
        "F-slow",
        "KAI fractions",
        "The agent is slower than the runtime waits: the same",
        (
            f"{_AGENT}kai_5_of_a_hundred_containers_none_starts_while_the_agent_is_dead_or_stalled",
            f"{_NODE}kai_5_a_container_that_starts_while_the_gate_gets_no_answer_is_refused",
            f"{_NODE}row_85_and_kai_5_nothing_starts_while_the_agent_stalls_and_then_each_has_its_own",
        ),
    ),
    Row(
        "F-proof",
        "KAI fractions",
        "Presence of variables is taken for enforcement",
        (
            "tests/agent/test_patrol.py::test_every_other_process_is_an_escape_at_the_second_look",
            f"{_ROUNDS}a_running_container_that_never_passed_the_gate_is_told",
            f"{_ROAD}a_manifest_runs_unchanged_under_its_limits",
        ),
        "by the region and the process list; limits that a driver keeps take a GPU",
    ),
    Row(
        "F-tampering",
        "KAI fractions, HAMi",
        "A pod lifts its own limit",
        (
            f"{_REAL}an_environment_of_the_pods_own_lifts_no_limit",
            f"{_REAL}a_volume_over_the_limiter_is_refused_by_the_gate_for_all_to_read",
            "tests/agent/test_verdict.py::test_whatever_lies_over_region_limiter_or_preload_is_refused",
        ),
        "commands to MPS take a GPU",
    ),
    Row(
        "F-several",
        "KAI fractions",
        "Only one container of a pod may have a fraction",
        (
            f"{_NODE}kai_5_init_two_containers_and_a_sidecar_each_have_a_limit_of_their_own",
            f"{_REAL}each_container_has_a_share_of_its_own",
        ),
    ),
    Row(
        "F-placeholder",
        "KAI fractions",
        "A placeholder pod holds the card",
        (f"{_CLUSTER}rows_8_and_9_after_a_burst_on_a_full_node_nothing_is_tried_and_nothing_changes",),
    ),
    Row(
        "F-view",
        "KAI fractions, HAMi",
        "A container sees the whole card's memory as its own",
        (
            f"{_REAL}a_container_sees_its_share_and_is_refused_past_it",
            f"{_ROAD}a_manifest_runs_unchanged_under_its_limits",
        ),
        "on x86-64; the calls one by one are tested with the limiter",
    ),
    Row(
        "F-metrics",
        "KAI fractions",
        "Limits and refusals are not exposed",
        (
            f"{_RESTART}metrics_show_every_share_from_the_first_scrape",
            f"{_ROAD}what_a_container_uses_is_what_the_host_sees",
        ),
    ),
    Row(
        "F-card",
        "KAI fractions, HAMi, TF",
        "Limits of drivers, compute limits, fault domains, live resize, cgroups",
        absent="need a GPU, or are later parts of the product (resize, soft limits, AMD)",
    ),
)

DEFECTS: Final = (
    Row(
        "D1",
        "KAI#2212",
        "The driver's own memory is not counted",
        absent="needs a GPU: what a driver keeps is measured",
    ),
    Row(
        "D2",
        "KAI#416",
        "24 pods of 2,000 MiB on 46,068 MiB",
        (
            f"{_SCHED}kai_2_what_is_left_of_a_device_is_told_to_the_mib",
            f"{_CLUSTER}kai_2_twenty_three_of_twenty_four_fit_and_the_last_is_told_what_is_left",
        ),
    ),
    Row(
        "D3",
        "KAI#706",
        "A device without a known memory is never used, or used without a limit",
        (
            f"{_SCHED}kai_3_a_device_without_a_known_memory_is_never_given_away_without_a_limit",
            "tests/runtime/test_nvml.py::test_a_device_that_fails_does_not_hide_the_others",
        ),
        "memory of the system as a device's own is not supported: such a device takes no shares",
    ),
    Row(
        "D4",
        "KAI#1544",
        "A pod runs with its variables and without its device",
        (
            f"{_RESTART}a_runtime_without_cdi_is_refused_by_default_and_offers_nothing",
            "tests/agent/test_verdict.py::test_devices_that_were_not_granted_are_refused",
        ),
    ),
    Row(
        "D5",
        "KAI#47",
        "A CDI name that the node does not have",
        (f"{_AGENT}kai_5_every_name_that_is_handed_out_is_in_the_specification",),
    ),
    Row(
        "D6",
        "KAI#261",
        "One node's driver fails, and pods wait without a reason",
        (
            f"{_SCHED}kai_6_a_node_without_an_inventory_keeps_nobody_from_another",
            f"{_REFUSE}where_an_agent_hands_out_nothing_its_own_words_are_told",
            "tests/agent/test_machine.py::test_a_driver_that_is_missing_is_no_failure_and_is_found_once_it_comes",
            f"{_KUBE}an_inventory_that_appears_is_used_within_seconds",
        ),
    ),
    Row(
        "D7",
        "KAI#1986",
        "Taints of nodes are not tolerated by what stands in for the pod",
        (f"{_CLUSTER}kai_7_a_tainted_node_takes_who_tolerates_it_and_nobody_else",),
    ),
    Row(
        "D8",
        "KAI#1798",
        "A fraction of NaN is accepted",
        (
            f"{_ADMIT}kai_8_what_is_no_amount_is_refused_at_admission_with_its_field",
            f"{_ADMIT}kai_8_blanks_around_an_annotation_mean_nothing_and_an_empty_one_is_none",
            f"{_NODE}kai_8_what_is_no_amount_is_refused_at_its_creation",
        ),
        "blanks around a number in an annotation are not refused: they cannot mean anything else",
    ),
    Row("D9", "KAI#1792", "A quota divides by the smallest card", absent="quotas are a later part of the product"),
    Row(
        "D10",
        "gpu-fractioning, changelog",
        "Limits are written under a name that nobody reads",
        (
            f"{_REAL}a_container_sees_its_share_and_is_refused_past_it",
            f"{_ROAD}a_manifest_runs_unchanged_under_its_limits",
        ),
    ),
    Row(
        "D11",
        "gpu-fractioning, changelog",
        "The agent cannot see the node's processes",
        (f"{_GATE}a_container_whose_process_the_agent_cannot_see_is_refused",),
    ),
    Row(
        "D12",
        "gpu-fractioning, PR 147",
        "Neighbours of a killed client hang while health is green",
        absent="needs a GPU and MPS",
    ),
    Row(
        "D13",
        "gpu-fractioning, changelog",
        "The agent keeps the driver from being replaced",
        ("tests/agent/test_machine.py::test_a_driver_that_is_missing_is_no_failure_and_is_found_once_it_comes",),
        "a driver that went is found again; it is not let go of when a node is marked for an upgrade",
    ),
    Row(
        "D14",
        "Dynamo, fractions experiment",
        "New pods wait for the old ones, and the old for the new",
        (
            f"{_NODE}kai_14_a_rollout_ends_on_a_cluster_that_is_full",
            f"{_NODE}kai_14_a_rollout_that_cannot_end_says_what_it_waits_for",
        ),
        "who waits is told that its rollout may wait for itself; whether it does stands in the Deployment alone",
    ),
    Row(
        "D15",
        "NDP#594",
        "The limit is that of a process: two have twice as much",
        (
            f"{_AGENT}kai_15_two_processes_of_a_container_have_one_share_together",
            f"{_NODE}kai_15_two_processes_of_one_container_have_one_share_together",
        ),
    ),
    Row(
        "D16",
        "nvidia-container-toolkit#2103",
        "The hook breaks containers that asked for no limit",
        (f"{_REAL}a_pod_that_asks_for_nothing_gets_nothing", f"{_GATE}a_question_that_makes_no_sense_is_refused"),
        "the gate comes with our devices alone, so a container without a share never meets it",
    ),
)

GROUPS: Final = (
    ("Placement", SCHEDULING),
    ("Isolation", ISOLATION),
    ("Limiter", LIMITER),
    ("Metrics", METRICS),
    ("Admission", WEBHOOK),
    ("Node", NODE),
    ("Leaders and rights", AVAILABILITY),
    ("Pods of several containers", CONTAINERS),
    ("Throughput and scale", SCALE),
    ("Fractions that a driver or an agent enforces", FEATURES),
    ("Defects of others", DEFECTS),
)

_USERS: Final = (*range(1, 21), *range(23, 73), *range(75, 91), 119, 120)
DEMANDED: Final = frozenset({*(f"U{n}" for n in _USERS), *(f"D{n}" for n in range(1, 17))})
"""The rows that must stand here, with a test or with a reason."""
