//! Exports of Nsight Systems: spans of hand-made tables by the documented schema, of older versions too.

use std::collections::HashMap;
use std::convert::Infallible;

use plimsoll_model::{AttributeValue, TraceSpan};
use plimsoll_wire::trace::{Notes, nsys};

/// A cell: a number or a text.
#[derive(Clone)]
enum Cell {
    N(i64),
    T(&'static str),
    Null,
}
use Cell::{N, Null, T};

/// The tables of an export: column names and rows.
#[derive(Default)]
struct Tables(HashMap<&'static str, (Vec<&'static str>, Vec<Vec<Cell>>)>);

impl Tables {
    fn with(mut self, table: &'static str, columns: &'static str, rows: Vec<Vec<Cell>>) -> Tables {
        self.0.insert(table, (columns.split(' ').collect(), rows));
        self
    }

    fn without(mut self, table: &'static str) -> Tables {
        self.0.remove(table);
        self
    }

    fn read(&self) -> Option<(Vec<TraceSpan>, Notes)> {
        let read = nsys::read::<Infallible>(&mut |table, wanted, each| {
            let Some((columns, rows)) = self.0.get(table) else { return Ok(false) };
            for row in rows {
                let cell = |name: &&str| match &row[columns.iter().position(|own| own == name)?] {
                    N(n) => Some(AttributeValue::Int(*n)),
                    T(text) => Some(AttributeValue::Text((*text).to_owned())),
                    Null => None,
                };
                each(&wanted.iter().map(cell).collect::<Vec<_>>());
            }
            Ok(true)
        });
        read.expect("no errors")
    }

    fn spans(&self) -> Vec<TraceSpan> {
        self.read().expect("an export").0
    }
}

/// Start of the session in ns since 1970.
const EPOCH: i64 = 1_779_782_330_000_000_000;

/// Returns the global id of a thread (0 = its process), as nsys packs it.
fn global(pid: i64, tid: i64) -> i64 {
    1 << 48 | pid << 24 | tid
}

/// Two processes with equal correlation ids, each with its own device 0, which are GPU 2 and GPU 5. In process 40 a
/// layer launches a kernel, a copy and a graph; then the thread waits.
fn two_processes() -> Tables {
    let (a, b) = (global(40, 41), global(50, 51));
    let texts = [
        (1, "cudaLaunchKernel_v7000"),
        (2, "void flash::flash_fwd_kernel<int>(int)"),
        (3, "flash_fwd_kernel"),
        (4, "cudaStreamSynchronize_v3020"),
        (5, "cudaGraphLaunch_v10000"),
        (6, "cuMemcpyHtoDAsync_v2"),
        (7, "registered range"),
        (8, "worker"),
        (9, "sem_wait"),
    ];
    let device = |start, end, correlation, pid, rest: [Cell; 2]| {
        let [own, kind] = rest;
        vec![N(start), N(end), N(0), N(1), N(7), N(correlation), N(global(pid, 0)), own, kind]
    };
    Tables::default()
        .with("StringIds", "id value", texts.map(|(id, text)| vec![N(id), T(text)]).to_vec())
        .with("TARGET_INFO_SESSION_START_TIME", "utcEpochNs utcTime", vec![vec![N(EPOCH), T("2026")]])
        .with("META_DATA_EXPORT", "name value", vec![vec![T("EXPORT_PARAM_TIME_NORMALIZE"), T("false")]])
        .with("PROCESSES", "globalPid pid name", vec![vec![N(global(40, 0)), N(40), T("/usr/bin/python3")]])
        .with("ThreadNames", "nameId priority globalTid", vec![vec![N(8), N(20), N(a)]])
        .with(
            "TARGET_INFO_CUDA_DEVICE",
            "gpuId cudaId pid",
            vec![vec![N(2), N(0), N(40)], vec![N(5), N(0), N(50)]],
        )
        .with(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            "start end eventClass globalTid correlationId nameId",
            vec![
                vec![N(110), N(120), N(0), N(a), N(1), N(1)],
                vec![N(130), N(140), N(0), N(a), N(2), N(6)],
                vec![N(150), N(160), N(0), N(a), N(3), N(5)],
                vec![N(200), N(900), N(0), N(a), N(4), N(4)],
                vec![N(115), N(125), N(0), N(b), N(1), N(1)],
            ],
        )
        .with(
            "CUPTI_ACTIVITY_KIND_KERNEL",
            "start end deviceId contextId streamId correlationId globalPid demangledName shortName",
            vec![device(300, 400, 1, 40, [N(2), N(3)]), device(310, 410, 1, 50, [N(99), N(3)])],
        )
        .with(
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            "start end deviceId contextId streamId correlationId globalPid copyKind bytes",
            vec![
                device(420, 430, 2, 40, [N(1), N(4096)]),
                // A page migration has no launch, and this version a kind that is not known.
                device(440, 450, 0, 40, [N(77), N(64)]),
            ],
        )
        .with(
            "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
            "start end deviceId contextId streamId correlationId globalPid graphId x",
            vec![
                device(500, 600, 3, 40, [N(12), Null]),
                // Both zero: the times were not recorded.
                device(0, 0, 3, 40, [N(12), Null]),
            ],
        )
        .with(
            "NVTX_EVENTS",
            "start end eventType text globalTid textId",
            vec![
                vec![
                    N(100),
                    N(190),
                    N(59),
                    T("{'Module': 'model.layers.0.attn', 'Inputs': [[1, 2]]}"),
                    N(a),
                    Null,
                ],
                vec![N(105), N(125), N(59), T("aten::sdpa, seq = 4, op_id = 9"), N(a), Null],
                vec![N(50), N(180), N(60), Null, N(a), N(7)],
                vec![N(100), Null, N(34), T("a mark"), N(a), Null],
                vec![N(0), Null, N(75), T("NCCL"), N(a), Null],
                vec![N(950), Null, N(59), T("open"), N(a), Null],
            ],
        )
        .with(
            "OSRT_API",
            "start end globalTid nameId",
            vec![
                vec![N(210), N(800), N(a), N(9)],
                // This thread never calls CUDA.
                vec![N(0), N(999), N(global(40, 77)), N(9)],
            ],
        )
}

fn find<'s>(spans: &'s [TraceSpan], name: &str, pid: &str) -> &'s TraceSpan {
    let of =
        |span: &&TraceSpan| span.name == name && (span.service.as_deref() == Some(pid) || pid.is_empty());
    spans.iter().find(of).unwrap_or_else(|| panic!("no {name} of {pid}: {spans:#?}"))
}

fn parent<'s>(spans: &'s [TraceSpan], span: &TraceSpan) -> Option<&'s TraceSpan> {
    spans.iter().find(|other| other.trace == span.trace && Some(other.id) == span.parent)
}

#[test]
fn work_hangs_below_its_launch_and_its_layer() {
    let tables = two_processes();
    let (spans, notes) = tables.read().expect("an export");
    let kernel = find(&spans, "void flash::flash_fwd_kernel<int>(int)", "GPU 2");
    assert_eq!((kernel.start_ns, kernel.end_ns), (EPOCH + 300, EPOCH + 400));
    let chain: Vec<&str> = std::iter::successors(parent(&spans, kernel), |span| parent(&spans, span))
        .map(|span| span.name.as_str())
        .collect();
    assert_eq!(chain, ["cudaLaunchKernel", "aten::sdpa", "model.layers.0.attn"]);
    // The other process has the same correlation id and device, and an unknown id of the long name.
    let other = find(&spans, "flash_fwd_kernel", "GPU 5");
    assert_eq!(other.attribute("device"), Some(&AttributeValue::Int(5)));
    assert_eq!(parent(&spans, other).and_then(|call| call.service.as_deref()), Some("pid 50"));
    let graph = find(&spans, "CUDA graph 12", "GPU 2");
    assert_eq!(parent(&spans, graph).map(|call| call.name.as_str()), Some("cudaGraphLaunch"));
    let copy = find(&spans, "Memcpy HtoD", "GPU 2");
    assert_eq!(parent(&spans, copy).map(|call| call.name.as_str()), Some("cuMemcpyHtoDAsync"));
    assert_eq!(copy.attribute("bytes"), Some(&AttributeValue::Int(4096)));
    assert_eq!(find(&spans, "Memcpy of an unknown kind", "GPU 2").parent, None);
    // A free range contains nothing, because it need not belong to the thread's work.
    assert!(spans.iter().all(|span| parent(&spans, span).is_none_or(|of| of.name != "registered range")));
    assert_eq!(find(&spans, "registered range", "").attribute("thread.id"), None);
    let wait = find(&spans, "sem_wait", "python3");
    assert_eq!(parent(&spans, wait).map(|call| call.name.as_str()), Some("cudaStreamSynchronize"));
    assert_eq!(spans.iter().filter(|span| span.name == "sem_wait").count(), 1, "idle threads are left out");
    assert_eq!(wait.attribute("thread.name").and_then(AttributeValue::text), Some("worker"));
    assert_eq!((notes.unused, notes.unended, notes.refused, notes.unanchored), (1, 1, 1, false));
}

#[test]
fn categories_are_those_of_kineto() {
    let spans = two_processes().spans();
    let category = |name: &str| find(&spans, name, "").attribute("category").and_then(AttributeValue::text);
    for (name, is) in [
        ("flash_fwd_kernel", "kernel"),
        ("CUDA graph 12", "kernel"),
        ("Memcpy HtoD", "gpu_memcpy"),
        ("cudaLaunchKernel", "cuda_runtime"),
        ("model.layers.0.attn", "nvtx"),
        ("aten::sdpa", "cpu_op"),
        ("sem_wait", "os_runtime"),
    ] {
        assert_eq!(category(name), Some(is), "{name}");
    }
    let whole = find(&spans, "aten::sdpa", "").attribute("nvtx.text").and_then(AttributeValue::text);
    assert_eq!(whole, Some("aten::sdpa, seq = 4, op_id = 9"));
}

#[test]
fn versions_and_missing_tables_are_tolerated() {
    let starts = |tables: &Tables| tables.spans().iter().map(|span| span.start_ns).min().expect("spans");
    assert_eq!(starts(&two_processes()), EPOCH + 50);
    // Exported as UTC: the times are complete. The second name of the table is that of 2023.
    let utc = || vec![vec![T("EXPORT_PARAM_TIME_NORMALIZE"), T("true")]];
    assert_eq!(starts(&two_processes().with("META_DATA_EXPORT", "name value", utc())), 50);
    let old = two_processes().without("META_DATA_EXPORT").with("EXPORT_META_DATA", "name value", utc());
    assert_eq!(starts(&old), 50);
    let (_, notes) = two_processes().without("TARGET_INFO_SESSION_START_TIME").read().expect("an export");
    assert!(notes.unanchored);
    // Without the table of devices the number of the process's device is used.
    let plain = two_processes().without("TARGET_INFO_CUDA_DEVICE").spans();
    assert_eq!(find(&plain, "flash_fwd_kernel", "GPU 0").attribute("device"), Some(&AttributeValue::Int(0)));
    let bare = Tables::default().with("CUPTI_ACTIVITY_KIND_KERNEL", "start end", vec![vec![N(1), N(2)]]);
    assert_eq!(bare.spans()[0].name, "(unnamed)");
    // A range without a type (a version without the column) is a range if it ends.
    let untyped = Tables::default().with(
        "NVTX_EVENTS",
        "start end text",
        vec![vec![N(1), N(9), T("a")], vec![N(3), Null, T("b")]],
    );
    assert_eq!(untyped.spans().iter().map(|span| span.name.as_str()).collect::<Vec<_>>(), ["a"]);
    // Texts alone are some other database.
    assert!(Tables::default().with("StringIds", "id value", vec![vec![N(1), T("x")]]).read().is_none());
    assert!(Tables::default().read().is_none());
}
