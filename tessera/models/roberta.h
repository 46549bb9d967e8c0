// RoBERTa, XLM-RoBERTa and CamemBERT encoders.
#pragma once

#include "models/roberta/roberta.h"
