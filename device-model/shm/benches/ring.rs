//! Costs of a record for its producer and its consumer, and of a packet copy.
//!
//! Both ends run on one CPU here, in batches. The result contains instructions and stores, but no
//! transfer of cache lines between CPUs.
#![allow(clippy::expect_used, reason = "a failure to set up ends the benchmark")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use nicforge_hwi::posted::CELL;
use nicforge_shm::{Consumer, Peek, Producer, SharedCells, SharedMemory};
use vm_memory::{MmapRegion, VolatileMemory};

/// Records in one timed batch. They fit the ring, and reduce the share of the clock's own cost.
const BATCH: u32 = 1000;

fn ring(criterion: &mut Criterion) {
    let memory = SharedMemory::create("bench", 1024 * CELL).expect("memory");
    let cells = SharedCells::new(memory.whole()).expect("ring");
    let (mut producer, mut consumer) = (Producer::new(cells.clone()), Consumer::new(cells));
    let mut group = criterion.benchmark_group("ring");
    group.throughput(Throughput::Elements(1));
    for len in [4usize, 8, 24, 56] {
        let data = vec![0x5au8; len];

        // One iteration is one record. The clock runs for one of the two ends only.
        let mut run = |iterations: u64, time_producer: bool| {
            let mut spent = Duration::ZERO;
            for _ in 0..iterations.div_ceil(BATCH.into()) {
                let start = Instant::now();
                for record in 0..BATCH {
                    let _ = black_box(producer.try_push(|| consumer.consumed(), 0, record, black_box(&data)));
                }

                let pushed = Instant::now();
                while let Peek::Record(record) = consumer.peek() {
                    black_box(record);
                    consumer.pop();
                }
                spent += if time_producer { pushed - start } else { pushed.elapsed() };
            }

            spent.mul_f64(iterations as f64 / (iterations.div_ceil(BATCH.into()) * u64::from(BATCH)) as f64)
        };

        group.bench_function(BenchmarkId::new("push", len), |bench| bench.iter_custom(|n| run(n, true)));
        group.bench_function(BenchmarkId::new("peek and pop", len), |bench| {
            bench.iter_custom(|n| run(n, false))
        });
    }

    group.finish();
}

fn copies(criterion: &mut Criterion) {
    let memory = SharedMemory::create("bench", 1 << 20).expect("memory");
    let window = memory.whole();
    let mut group = criterion.benchmark_group("copy");
    let mut buffer = vec![0u8; 1 << 19];
    let region = MmapRegion::<()>::new(1 << 20).expect("memory");
    for len in [8usize, 64, 256, 1024, 2048, 4096, 65536] {
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_function(BenchmarkId::new("read", len), |bench| {
            bench.iter(|| window.read(black_box(0), black_box(&mut buffer[..len])));
        });
        group.bench_function(BenchmarkId::new("write", len), |bench| {
            bench.iter(|| window.write(black_box(0), black_box(&buffer[..len])));
        });
        group.bench_function(BenchmarkId::new("between", len), |bench| {
            bench.iter(|| window.copy_to(black_box(0), &window, black_box(1 << 19), len as u64));
        });
        group.bench_function(BenchmarkId::new("between skewed", len), |bench| {
            bench.iter(|| window.copy_to(black_box(4), &window, black_box(1 << 19), len as u64));
        });
        // vm-memory copies more than 8 bytes as ordinary memory.
        let peer = region.as_volatile_slice().subslice(0, len).expect("within the region");
        group.bench_function(BenchmarkId::new("vm-memory read", len), |bench| {
            bench.iter(|| black_box(peer).copy_to(black_box(&mut buffer[..len])));
        });
        group.bench_function(BenchmarkId::new("vm-memory write", len), |bench| {
            bench.iter(|| black_box(peer).copy_from(black_box(&buffer[..len])));
        });
        // The same bytes in plain memory, for comparison.
        let source = vec![1u8; len];
        group.bench_function(BenchmarkId::new("slice", len), |bench| {
            bench.iter(|| black_box(&mut buffer[..len]).copy_from_slice(black_box(&source)));
        });
    }

    group.throughput(Throughput::Bytes(256));
    let mut packet = [0u8; 256];
    group.bench_function("read array 256", |bench| {
        bench.iter(|| window.read_array(black_box(0x100), black_box(&mut packet)));
    });

    group.bench_function("write array 256", |bench| {
        bench.iter(|| window.write_array(black_box(0x100), black_box(&packet)));
    });

    group.finish();
}

criterion_group!(benches, ring, copies);
criterion_main!(benches);
