// ViT, and its folders.
#pragma once

#include "models/load/folder.h"
#include "models/load/image_models.h"
#include "models/vit/vit.h"
