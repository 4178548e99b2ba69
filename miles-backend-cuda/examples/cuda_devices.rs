//! Lists the CUDA devices of this machine, or says why there are none.
//!
//! `cargo run -p miles-backend-cuda --example cuda_devices`

fn main() {
    match miles_backend_cuda::devices() {
        Ok(devices) => devices.iter().for_each(|device| println!("{device}")),
        Err(error) => println!("not run: {error}"),
    }
    match miles_backend_cuda::backend(0) {
        Ok(backend) => println!("backend: {backend:?}"),
        Err(error) => println!("backend: {error}"),
    }
}
