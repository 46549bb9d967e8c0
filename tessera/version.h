// Only the version, for `#if TESSERA_VERSION >= 200` and for a program that reports it.
#pragma once

#include "base/version.h"
