//! Reads the GPUs of this machine from NVIDIA's driver (NVML), for a target on the same machine.
//!
//! The library is loaded at run time. A machine without it, and a statically linked binary, which cannot load libraries, have no GPUs
//! here. The metrics have own names, because DCGM exporter's units differ. Starting `nvidia-smi` was rejected: a process
//! per scrape would disturb the measurement.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::{Device, Nvml};
use plimsoll_wire::exposition::ExposedValue;

/// The readings of one GPU; `None` for a reading that the GPU does not support.
#[derive(Clone, PartialEq, Debug, Default)]
struct GpuState {
    uuid: String,
    /// Share of time with any kernel, in per cent.
    utilisation: Option<f64>,
    memory_used_bytes: Option<f64>,
    memory_free_bytes: Option<f64>,
    sm_clock_mhz: Option<f64>,
    temperature_celsius: Option<f64>,
    power_mw: Option<f64>,
    /// Energy since the driver was loaded.
    energy_mj: Option<f64>,
    /// Bit mask of the reasons for a lower clock.
    clock_reasons: Option<f64>,
}

/// Returns the metrics of this machine's GPUs; empty without a driver.
pub(crate) fn rows() -> Vec<ExposedValue> {
    static DRIVER: OnceLock<Option<Nvml>> = OnceLock::new();
    let Some(driver) = DRIVER.get_or_init(|| Nvml::init().ok()) else { return Vec::new() };
    let devices = (0..driver.device_count().unwrap_or(0)).filter_map(|n| driver.device_by_index(n).ok());
    exposed(&devices.filter_map(|device| read(&device)).collect::<Vec<_>>())
}

/// Returns the number of this machine's GPUs.
pub(crate) fn gpus() -> usize {
    let rows = rows();
    let uuids = rows.iter().flat_map(|row| &row.labels).map(|(_, uuid)| uuid);
    uuids.collect::<BTreeSet<_>>().len()
}

fn read(device: &Device<'_>) -> Option<GpuState> {
    let memory = device.memory_info().ok();
    Some(GpuState {
        uuid: device.uuid().ok()?,
        utilisation: device.utilization_rates().ok().map(|rates| f64::from(rates.gpu)),
        memory_used_bytes: memory.as_ref().map(|memory| memory.used as f64),
        memory_free_bytes: memory.as_ref().map(|memory| memory.free as f64),
        sm_clock_mhz: device.clock_info(Clock::SM).ok().map(f64::from),
        temperature_celsius: device.temperature(TemperatureSensor::Gpu).ok().map(f64::from),
        power_mw: device.power_usage().ok().map(f64::from),
        energy_mj: device.total_energy_consumption().ok().map(|energy| energy as f64),
        clock_reasons: device.current_throttle_reasons().ok().map(|reasons| reasons.bits() as f64),
    })
}

fn exposed(gpus: &[GpuState]) -> Vec<ExposedValue> {
    let of = |gpu: &GpuState| {
        let labels = vec![("uuid".to_owned(), gpu.uuid.clone())];
        let values = [
            ("nvml_gpu_utilization_percent", gpu.utilisation),
            ("nvml_memory_used_bytes", gpu.memory_used_bytes),
            ("nvml_memory_free_bytes", gpu.memory_free_bytes),
            ("nvml_sm_clock_mhz", gpu.sm_clock_mhz),
            ("nvml_temperature_celsius", gpu.temperature_celsius),
            ("nvml_power_milliwatts", gpu.power_mw),
            ("nvml_energy_millijoules", gpu.energy_mj),
            ("nvml_clock_reasons", gpu.clock_reasons),
        ];
        let known = values.into_iter().filter_map(|(name, value)| Some((name, value?)));
        known
            .map(|(name, value)| ExposedValue { name: name.to_owned(), labels: labels.clone(), value })
            .collect::<Vec<_>>()
    };
    gpus.iter().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_that_a_gpu_lacks_has_no_row() {
        let all = GpuState {
            uuid: "GPU-1".into(),
            power_mw: Some(350_000.0),
            energy_mj: Some(7e9),
            ..GpuState::default()
        };
        let rows = exposed(&[all, GpuState { uuid: "GPU-2".into(), ..GpuState::default() }]);
        let told: Vec<(&str, &str, f64)> =
            rows.iter().map(|row| (&*row.name, &*row.labels[0].1, row.value)).collect();
        assert_eq!(
            told,
            [("nvml_power_milliwatts", "GPU-1", 350_000.0), ("nvml_energy_millijoules", "GPU-1", 7e9)]
        );
    }

    /// On a machine without a driver there is no GPU and no error; with a driver each GPU has a name.
    #[test]
    fn a_machine_without_a_driver_has_no_gpus() {
        assert!(rows().iter().all(|row| row.name.starts_with("nvml_") && !row.labels[0].1.is_empty()));
    }
}
