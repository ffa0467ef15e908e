// classify: prints the class of each image, with a model that ringgrad has trained.
#include <ringgrad.h>
#include <stdio.h>
#include <stdlib.h>

static unsigned char file[1 << 26]; // 64 MiB

static int fail(const char* path, const char* error) {
    fprintf(stderr, "%s: %s\n", path, error);
    return EXIT_FAILURE;
}

int main(int argc, char** argv) {
    if (argc < 3) return fail(argv[0], "expected MODEL IMAGE...");
    rg_model* model = rg_open(argv[1], 0);
    if (!model) return fail(argv[1], rg_last_error());
    const int classes = rg_class_count(model), count = classes + rg_target_count(model);
    if (classes == 0) return fail(argv[1], "expected a model with classes");
    float* outputs = (float*)malloc(sizeof(float) * (size_t)count); // probabilities of the classes, then targets
    if (!outputs) return fail(argv[0], "expected more memory");
    for (int i = 2; i < argc; ++i) {
        FILE* image = fopen(argv[i], "rb");
        if (!image) return fail(argv[i], "cannot be opened");
        const size_t size = fread(file, 1, sizeof file, image);
        fclose(image);
        if (rg_predict_file(model, file, size, outputs, (size_t)count) < 0) return fail(argv[i], rg_last_error());
        int best = 0;
        for (int k = 1; k < classes; ++k)
            if (outputs[k] > outputs[best]) best = k;
        printf("%s\t%s\t%.6f\n", argv[i], rg_class_name(model, best), outputs[best]);
    }
    free(outputs);
    rg_close(model);
    return EXIT_SUCCESS;
}
