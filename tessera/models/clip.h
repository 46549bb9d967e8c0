// CLIP, and its folders.
#pragma once

#include "models/clip/clip.h"
#include "models/load/folder.h"
#include "models/load/image_models.h"
