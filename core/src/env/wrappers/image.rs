//! Smaller images, and bytes as floats.

use super::{Lives, WrapError};
use crate::{
    column::{DType, RowShape},
    env::{Env, EnvError, EnvState, Frame, Rng, Step},
    prelude::*,
    preprocess::image::{self, AreaResizer, ImageError, Size},
    space::{BoxSpace, Space, SpaceError},
};

/// Implements the wrappers of this file: they keep the inner observation, and convert it.
macro_rules! converting {
    ($wrapper:ident, $obs:ty) => {
        impl<E: Env<Obs = u8>> $wrapper<E> {
            /// Returns the environment inside.
            #[must_use]
            pub const fn env(&self) -> &E {
                &self.env
            }
        }

        impl<E: Env<Obs = u8> + Lives> Lives for $wrapper<E> {
            fn lives(&self) -> u32 {
                self.env.lives()
            }
        }

        impl<E: Env<Obs = u8>> Env for $wrapper<E> {
            type Obs = $obs;
            type Act = E::Act;

            fn observation_space(&self) -> Space {
                self.space.clone()
            }

            fn action_space(&self) -> Space {
                self.env.action_space()
            }

            fn accepts(&self, action: &[E::Act]) -> bool {
                self.env.accepts(action)
            }

            fn reset(&mut self, rng: &mut Rng, obs: &mut [$obs]) -> Result<(), EnvError> {
                self.env.reset(rng, &mut self.frame)?;
                self.convert(obs).map_err(failed)
            }

            fn step(&mut self, action: &[E::Act], rng: &mut Rng, obs: &mut [$obs]) -> Result<Step, EnvError> {
                let step = self.env.step(action, rng, &mut self.frame)?;
                self.convert(obs).map_err(failed)?;
                Ok(step)
            }

            /// Renders the environment itself: the conversion is for policies.
            fn render(&self, frame: &mut Frame) -> bool {
                self.env.render(frame)
            }

            fn info(&self, out: &mut Vec<u8>) -> bool {
                self.env.info(out)
            }

            fn snapshot(&self, out: &mut Vec<u8>) -> EnvState {
                self.env.snapshot(out)
            }

            fn restore(&mut self, snapshot: &[u8], obs: &mut [$obs]) -> Result<(), EnvError> {
                self.env.restore(snapshot, &mut self.frame)?;
                self.convert(obs).map_err(failed)
            }
        }
    };
}

fn failed(error: ImageError) -> EnvError {
    EnvError::Failed(error.to_string())
}

fn images(height: u32, width: u32, channels: u32) -> Result<Space, WrapError> {
    let elements = u64::from(height) * u64::from(width) * u64::from(channels);
    let shape = RowShape::new(&[height, width, channels]).map_err(|_| SpaceError::TooLarge { elements })?;
    let space = Space::uniform(DType::U8, shape, 0.0, 255.0);
    space.validate()?;
    Ok(space)
}

/// Returns height, width and channels of an environment's images.
fn image_dims(space: &Space, wanted: &'static str) -> Result<[u32; 3], WrapError> {
    match space {
        Space::Box(images) if images.dtype() == DType::U8 => images.shape().dims().try_into().ok(),
        _ => None,
    }
    .ok_or_else(|| WrapError::NotAnImage { space: space.to_string(), wanted })
}

/// Converts colour images to grey: (height, width, 3) becomes (height, width, 1), weighted as in OpenCV.
#[derive(Clone, Debug)]
pub struct GreyScale<E> {
    env: E,
    frame: Vec<u8>,
    space: Space,
}

impl<E: Env<Obs = u8>> GreyScale<E> {
    /// Wraps an environment.
    ///
    /// # Errors
    /// [`WrapError::NotAnImage`] for anything but images with three channels.
    pub fn new(env: E) -> Result<Self, WrapError> {
        const WANTED: &str = "(height, width, 3)";
        let space = env.observation_space();
        let [height, width, 3] = image_dims(&space, WANTED)? else {
            return Err(WrapError::NotAnImage { space: space.to_string(), wanted: WANTED });
        };
        Ok(Self { env, frame: vec![0; space.shape().elements()], space: images(height, width, 1)? })
    }

    fn convert(&self, obs: &mut [u8]) -> Result<(), ImageError> {
        image::grey(&self.frame, obs)
    }
}

converting!(GreyScale, u8);

/// Resizes images: every pixel is the mean of the area that it covers.
#[derive(Clone, Debug)]
#[doc(alias = "WarpFrame")]
pub struct Resize<E> {
    env: E,
    frame: Vec<u8>,
    space: Space,
    resizer: AreaResizer,
}

impl<E: Env<Obs = u8>> Resize<E> {
    /// Wraps an environment. DeepMind and RLlib use 84 x 84.
    ///
    /// # Errors
    /// [`WrapError::NotAnImage`] for anything but images of at most 65,535 pixels each way, [`WrapError::BadSpace`]
    /// for a size without pixels or with too many.
    pub fn new(env: E, to: Size) -> Result<Self, WrapError> {
        const WANTED: &str = "(height, width, channels)";
        let space = env.observation_space();
        let [height, width, channels] = image_dims(&space, WANTED)?;
        let (Ok(from_height), Ok(from_width)) = (u16::try_from(height), u16::try_from(width)) else {
            return Err(WrapError::NotAnImage { space: space.to_string(), wanted: WANTED });
        };
        Ok(Self {
            env,
            frame: vec![0; space.shape().elements()],
            space: images(u32::from(to.height), u32::from(to.width), channels)?,
            resizer: AreaResizer::new(Size::new(from_height, from_width), to, channels as usize),
        })
    }

    fn convert(&mut self, obs: &mut [u8]) -> Result<(), ImageError> {
        self.resizer.resize(&self.frame, obs)
    }
}

converting!(Resize, u8);

/// Converts bytes to floats from 0 to 1, by dividing by 255. For policies that only support floats.
#[derive(Clone, Debug)]
#[doc(alias = "ScaledFloatFrame")]
pub struct ScaleObs<E> {
    env: E,
    frame: Vec<u8>,
    space: Space,
}

impl<E: Env<Obs = u8>> ScaleObs<E> {
    /// Wraps an environment.
    ///
    /// # Errors
    /// [`WrapError::WrongType`] unless its observations are boxes.
    pub fn new(env: E) -> Result<Self, WrapError> {
        let inner = env.observation_space();
        let Space::Box(bytes) = &inner else {
            return Err(WrapError::WrongType { space: inner.to_string(), found: DType::U8 });
        };
        let scaled = |byte: f64| f64::from(byte as f32 / 255.0);
        let (low, high) = bytes.bounds().map(|(low, high)| (scaled(low), scaled(high))).unzip();
        let space = BoxSpace::new(DType::F32, bytes.shape(), low, high)?.into();
        Ok(Self { env, frame: vec![0; inner.shape().elements()], space })
    }

    fn convert(&self, obs: &mut [f32]) -> Result<(), ImageError> {
        image::to_unit(&self.frame, obs)
    }
}

converting!(ScaleObs, f32);
