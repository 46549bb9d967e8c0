// A run in one object: it steps, saves and resumes, and reports events as data.
#pragma once

#include "trainer/tensor_task.h"
#include "trainer/trainer.h"
