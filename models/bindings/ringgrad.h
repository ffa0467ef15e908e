// ringgrad in C, and in every language that can call C: predicts with a trained model on the CPU.
//
//     rg_model* model = rg_open("runs/flowers", 0);
//     float outputs[5]; // for one image: a probability for each class, then the targets, if the model has any
//     if (!model || rg_predict_file(model, jpeg, jpeg_size, outputs, 5) < 0) puts(rg_last_error());
//     rg_close(model);
//
// Functions that return a pointer return NULL on failure, and those that return an int, -1. rg_last_error() says what
// was wrong. A NULL argument is an error. No C++ exception leaves a function, and none of them prints or exits.
//
// A program may use several models at the same time. If several threads use the same one, their predictions wait for
// each other; models of their own run in parallel. Close a model after the last call with it. Open models after fork():
// in a child, a prediction with the parent's model is an error, and rg_close() leaves it as it is.
//
// Opening a model of a network that a program has defined itself fails; the error names the program. Predict with it.
//
// Link libringgrad_predict.so, or for a static program libringgrad.a and the C++ library. Neither needs MPI or CUDA.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rg_model rg_model;

/// Loads a model from a run's folder, or from any safetensors file or checkpoint of a network that ringgrad knows. Of a
/// folder, takes the model that the run tests in the end: model-best.safetensors with --validation, if it exists, except
/// in a trial of a sweep; otherwise model.safetensors. A network that takes numbers beside images is an error.
/// Predictions use `threads` threads, including the caller's, or one per available core if that is 0.
rg_model* rg_open(const char* path, int threads);
/// Loads a model from the `size` bytes of its file. They are no longer needed after the call.
rg_model* rg_open_memory(const void* file, size_t size, int threads);
/// Frees a model. Does nothing for NULL.
void rg_close(rg_model* model);

/// Return the height, the width and the number of channels (1 grey, 3 RGB) of the images that the network takes. After
/// a training with --store-size, these are the central window of larger images.
int rg_height(const rg_model* model);
int rg_width(const rg_model* model);
int rg_channels(const rg_model* model);

/// Return the number of classes, 0 if the network does not classify, and the name of one. A name lives as long as the
/// model.
int rg_class_count(const rg_model* model);
const char* rg_class_name(const rg_model* model, int index);

/// Return the number of targets, often 0, and the name and the unit of one. A target is a number that the network
/// predicts, such as an angle in degrees, or a label, whose number is the probability that it applies.
int rg_target_count(const rg_model* model);
const char* rg_target_name(const rg_model* model, int index);
const char* rg_target_unit(const rg_model* model, int index);

/// Predicts for n images of the same size: pixels[n][height][width][channels] with 1 (grey), 2 (grey and alpha), 3
/// (RGB) or 4 (RGBA) channels, or with those of the network. Images of another size than --size, or --store-size if
/// given, or with other channels are resized, cropped and converted as in the training. Writes outputs[n][classes +
/// targets]: for each image a probability for each class, and then the value of each target. `output_count` is the
/// number of floats, n * (classes + targets). Returns 0, or -1 if an argument is wrong or a result is not finite; then
/// the outputs are undefined. The first prediction for each n up to 256 takes longer, since it is planned. With the n
/// of the last call, the network's size and its channels, allocates no memory.
int rg_predict(rg_model* model, const uint8_t* pixels, size_t n, int height, int width, int channels, float* outputs,
               size_t output_count);
/// Predicts for one image, from the `size` bytes of a PNG or a JPEG file. `output_count` is classes + targets.
int rg_predict_file(rg_model* model, const void* file, size_t size, float* outputs, size_t output_count);

/// Returns the number k of features that a layer of the network gives for an image, 0 for "", or -1 if there is no such
/// layer; then the error lists the layers. The networks of ringgrad have block1 to block3 (cifar), layer1 to layer4
/// (resnet18, resnet50), features.0 to features.18 (mobilenet_v2) and others. The features are the means of the layer's
/// channels over all pixels.
int rg_feature_count(rg_model* model, const char* layer);
/// Do the same as rg_predict() and rg_predict_file(), and write the features of a layer after the targets of each
/// image. `output_count` is n * (classes + targets + k).
int rg_predict_features(rg_model* model, const char* layer, const uint8_t* pixels, size_t n, int height, int width,
                        int channels, float* outputs, size_t output_count);
int rg_predict_file_features(rg_model* model, const char* layer, const void* file, size_t size, float* outputs,
                             size_t output_count);

/// Returns what was wrong in the last call that failed on this thread, or "" if none has. The text is valid until
/// another call fails on this thread.
const char* rg_last_error(void);

#ifdef __cplusplus
}
#endif
