// Makes the task that a recipe trains.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "checkpoint/save/model_files.h"
#include "tasks/instructions/dpo.h"
#include "tasks/next_token.h"
#include "tasks/sentence_pairs.h"
#include "tasks/task.h"
#include "training/recipe/recipe.h"

namespace tessera::training {

// The frozen model beside the trained one, that of train.teacher or the reference of
// train.task: dpo: at most one of them, that of the recipe's task.
struct Teachers {
  std::shared_ptr<tasks::Teacher> of_logits = {};
  std::shared_ptr<tasks::SentenceTeacher> of_embeddings = {};
  std::shared_ptr<tasks::Reference> of_answers = {};
};

// The recipe's task. Its model is initialized from the thread's seed. A planned run reads no data.
std::unique_ptr<tasks::ModelTask> make_task(const Recipe& recipe, bool planned,
                                            const Teachers& teachers = {});

// The name or path of the recipe's tokenizer. If the recipe names none: the pretrained folder's,
// else bytes.
std::string tokenizer_name(const Recipe& recipe);

// The files of the recipe's tokenizer by name, if the tokenizer is a folder: a saved model has them
// beside its weights.
checkpoint::ModelFiles tokenizer_files(const Recipe& recipe);

// The model's configuration: the recipe's, or a pretrained folder's with the recipe's changes.
nlohmann::json model_configuration(const Recipe& recipe);

}  // namespace tessera::training
